// Communication hooks of FSDP.

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

struct Case {
  ShardingStrategy strategy;
  int world;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.strategy << c.world;
}

class FsdpHooks : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, FsdpHooks,
    testing::Values(Case{ShardingStrategy::full_shard, 1}, Case{ShardingStrategy::full_shard, 2},
                    Case{ShardingStrategy::full_shard, 3}, Case{ShardingStrategy::shard_grad_op, 2},
                    Case{ShardingStrategy::no_shard, 3}, Case{ShardingStrategy::hybrid_shard, 2},
                    Case{ShardingStrategy::hybrid_shard, 4}));

// Parameters after some steps, the loss a sum of squares of the outputs.
State train(const Case& c, const std::function<void(FSDP<nn::Sequential>&)>& prepare,
            const FSDPMixedPrecision& precision = {}) {
  Collected result;
  comm::LocalWorld(c.world).run([&](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.sharding_strategy = c.strategy,
               .auto_wrap_policy = linears(),
               .mixed_precision = precision,
               .shard_size = 2});
    prepare(fsdp);
    optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const auto backward = [&](int micro) {
        loss_of(fsdp(inputs_of(step, group->rank(), micro)).to(f32)).backward();
      };
      {
        const auto guard = fsdp.no_sync();
        backward(0);
      }
      backward(1);
      sgd.step();
    }
    result.put(group->rank(), values_of(fsdp.full_state()));
  });
  return result.get();
}

TEST_P(FsdpHooks, ReduceScatterIsWhatHappensWithoutAHook) {
  if (GetParam().world == 4) return;  // sums of four are grouped otherwise
  const State expected = train(GetParam(), [](auto&) {});
  const State hooked = train(GetParam(), [](auto& fsdp) {
    fsdp.register_comm_hook(fsdp_hooks::reduce_scatter(), "reduce_scatter");
  });
  EXPECT_EQ(hooked, expected);
}

// DDP rounds bf16 buckets where a compressed reduction rounds its parts.
TEST_P(FsdpHooks, CompressionIsAReductionInThatDtype) {
  const State expected = train(GetParam(), [](auto&) {}, {.reduce_dtype = bf16});
  const State hooked =
      train(GetParam(), [](auto& fsdp) { fsdp.register_comm_hook(fsdp_hooks::bf16_compress()); });
  const State half =
      train(GetParam(), [](auto& fsdp) { fsdp.register_comm_hook(fsdp_hooks::fp16_compress()); });
  for (const auto& [name, values] : expected) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(hooked.at(name)[i], values[i], 2e-3) << name;
      EXPECT_NEAR(half.at(name)[i], values[i], 2e-3) << name;
    }
  }
}

TEST_P(FsdpHooks, NoopMovesNothingAndLeavesTheRanksOwn) {
  comm::LocalWorld(GetParam().world).run([&](const Group& group) {
    FSDP fsdp(one_weight(), group,
              {.sharding_strategy = GetParam().strategy, .zero_copy = false, .shard_size = 2});
    fsdp.register_comm_hook(fsdp_hooks::noop());
    const Tensor y = fsdp(number(group->rank() + 1));
    group->reset_stats();
    sum(y).backward();
    EXPECT_EQ(group->stats().of(comm::Operation::reduce_scatter).count, 0);
    EXPECT_LE(group->stats().of(comm::Operation::all_reduce).count, 1) << "which were used";
    const Tensor& weight = fsdp.module().weight;
    if (weight.numel() > 0) {
      EXPECT_EQ(grad_of(weight), group->rank() + 1);
    }
  });
}

TEST_P(FsdpHooks, SeesWholeGradientsTheirGroupsAndTheOrder) {
  if (GetParam().world == 1) return;
  comm::LocalWorld(GetParam().world).run([&](const Group& group) {
    FSDP fsdp(
        small_model(), group,
        {.sharding_strategy = GetParam().strategy, .auto_wrap_policy = linears(), .shard_size = 2});
    std::vector<std::string> units;
    fsdp.register_comm_hook([&](const FSDPGradient& gradient) {
      EXPECT_EQ(gradient.index, static_cast<int>(units.size()));
      units.push_back(gradient.unit);
      EXPECT_EQ(gradient.whole.numel(), gradient.row.numel() * gradient.shard_group->size());
      const int replicas = gradient.replicate_group ? gradient.replicate_group->size() : 1;
      EXPECT_EQ(gradient.shard_group->size() * replicas, group->size());
      return fsdp_hooks::reduce_scatter()(gradient);
    });
    for (int step = 0; step < 2; ++step) {
      units.clear();
      loss_of(fsdp(inputs_of(step, group->rank(), 0))).backward();
      EXPECT_EQ(units, (std::vector<std::string>{"7", "5", "3", "1"}));
    }
  });
}

TEST(FsdpHook, ContinuationsMakeTheGradientAndMayCommunicate) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(one_weight(), group);
    fsdp.register_comm_hook([](const FSDPGradient& gradient) {
      const comm::Work work = gradient.shard_group->reduce_scatter(gradient.row, gradient.whole);
      return BucketWork::after(work, gradient.row)
          .then([](Tensor sum) { return sum * 10.0; })
          .then([group = gradient.shard_group](Tensor value) {
            return BucketWork::after(group->all_reduce(value), value);
          });
    });
    sum(fsdp(number(group->rank() + 1))).backward();
    // Rank 0 has the element, the padding of rank 1 is zero.
    if (group->rank() == 0) {
      EXPECT_EQ(grad_of(fsdp.module().weight), 30);
    }
  });
}

// DDP's idiom, a reduction in place, would hand out memory that the next unit writes.
TEST(FsdpHook, AResultInTheWholeGradientIsAnErrorOnEveryRank) {
  std::atomic<int> raised{0};
  EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.sharding_strategy = ShardingStrategy::no_shard, .auto_wrap_policy = linears()});
    fsdp.register_comm_hook([](const FSDPGradient& g) {
      return BucketWork::after(g.replicate_group->all_reduce(g.whole), g.whole);
    });
    const std::string message =
        message_of<Error>([&] { loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward(); });
    EXPECT_NE(message.find("returned memory of `whole`"), std::string::npos) << message;
    ++raised;
    throw InvalidArgument("end");
  }),
               InvalidArgument);
  EXPECT_EQ(raised, 2);
}

TEST(FsdpHook, RegistrationIsCheckedOnAllRanks) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(one_weight(), group);
    EXPECT_THROW(fsdp.register_comm_hook({}), InvalidArgument);
    EXPECT_THROW(fsdp.register_comm_hook(fsdp_hooks::noop(), ""), InvalidArgument);
    EXPECT_THROW(fsdp.register_comm_hook(fsdp_hooks::noop(), "h" + std::to_string(group->rank())),
                 MismatchError);
    fsdp.register_comm_hook(fsdp_hooks::noop(), "noop");
    const std::string message =
        message_of<InvalidArgument>([&] { fsdp.register_comm_hook(fsdp_hooks::noop(), "again"); });
    EXPECT_NE(message.find("'noop' is registered"), std::string::npos) << message;
    EXPECT_THROW(fsdp.set_gradient_divide_factor(1), InvalidArgument);
    const Tensor y = fsdp(number(1));
    register_hook(y, [&](const Tensor&) {
      EXPECT_THROW(fsdp.register_comm_hook(fsdp_hooks::noop()), InvalidArgument);
      return Tensor();
    });
    sum(y).backward();
  });
}

// On rank 1 alone: what the hook does wrong, and what its backward says.
struct Fault {
  const char* what;
  FSDPCommHook hook;
  const char* text;
};

class FsdpHookFaults : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Kinds, FsdpHookFaults, testing::Values(0, 1, 2, 3, 4));

TEST_P(FsdpHookFaults, EndTheGroupAndReachEveryRank) {
  const auto reduced = [](const FSDPGradient& gradient) {
    return fsdp_hooks::reduce_scatter()(gradient);
  };
  const Fault faults[] = {
      {"throws", [](const FSDPGradient&) -> BucketWork { throw InvalidArgument("broken hook"); },
       "broken hook"},
      {"returns no work", [](const FSDPGradient&) { return BucketWork(); }, "returned no work"},
      {"another size",
       [=](const FSDPGradient& g) {
         return reduced(g).then([](Tensor) { return Tensor::ones({3}); });
       },
       "must return 16 elements of f32"},
      {"another dtype",
       [=](const FSDPGradient& g) { return reduced(g).then([](Tensor r) { return r.to(f16); }); },
       "returned 16 of f16"},
      {"throws later",
       [=](const FSDPGradient& g) {
         return reduced(g).then([](Tensor) -> Tensor { throw InvalidArgument("late"); });
       },
       "late"}};
  const Fault& fault = faults[GetParam()];
  std::atomic<int> raised{0};
  EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
    FSDP fsdp(one_weight(), group, {.zero_copy = false});
    fsdp.register_comm_hook(group->rank() == 1 ? fault.hook : fsdp_hooks::reduce_scatter(), "h");
    const std::string message = message_of<Error>([&] {
      for (int step = 0; step < 2; ++step) sum(fsdp(number(1))).backward();
    });
    EXPECT_NE(message.find(fault.text), std::string::npos) << fault.what << ": " << message;
    ++raised;
    throw InvalidArgument("end");
  }),
               InvalidArgument);
  EXPECT_EQ(raised, 2);
}

}  // namespace
}  // namespace cohort
