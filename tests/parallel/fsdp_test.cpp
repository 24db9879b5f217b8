// What FSDP does beside its numbers (fsdp_parity_test.cpp): memory, traffic, odd models, errors.
// Numbers in names are rows of the FSDP list in docs/conformance.md.

#include "cohort/parallel/fsdp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

TEST(Fsdp, Row2AWorldOfOneCommunicatesNothing) {
  comm::LocalWorld(1).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    group->reset_stats();
    loss_of(fsdp(inputs_of(0, 0, 0))).backward();
    EXPECT_EQ(group->stats().total().count, 0);
  });
}

TEST(Fsdp, Row11CollectivesOfAStepAreThoseOfThePlan) {
  using comm::Operation;
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(small_model(), group,
                {.sharding_strategy = strategy, .auto_wrap_policy = linears(), .zero_copy = false});
      optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
      for (int step = 0; step < 2; ++step) {
        group->reset_stats();
        sgd.zero_grad();
        loss_of(fsdp(inputs_of(step, group->rank(), 0))).backward();
        sgd.step();
        const comm::GroupStats stats = group->stats();
        const FSDPPlan plan = fsdp.plan();
        const bool full = strategy == ShardingStrategy::full_shard;
        EXPECT_EQ(stats.of(Operation::all_gather).count, full ? 6 : 4);
        EXPECT_EQ(stats.of(Operation::all_gather).count, plan.count(Operation::all_gather));
        EXPECT_EQ(stats.of(Operation::all_gather).logical_bytes,
                  plan.logical_bytes(Operation::all_gather));
        EXPECT_EQ(stats.of(Operation::reduce_scatter).count, 4);
        EXPECT_EQ(stats.of(Operation::reduce_scatter).count, plan.count(Operation::reduce_scatter));
        EXPECT_EQ(stats.of(Operation::reduce_scatter).logical_bytes,
                  plan.logical_bytes(Operation::reduce_scatter));
        EXPECT_EQ(stats.of(Operation::all_reduce).count, 1) << "which parameters were used";
      }
    });
  }
}

TEST(Fsdp, ZeroCopyGathersNothing) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    group->reset_stats();
    loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
    EXPECT_EQ(group->stats().of(comm::Operation::all_gather).count, 0);
    EXPECT_EQ(fsdp.plan().logical_bytes(comm::Operation::all_gather), 0);
  });
}

TEST(Fsdp, ParametersAreRowsAtRestAndWholeInForward) {
  struct Probe : nn::ModuleOf<Probe> {
    nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 3, 5);
    Shape seen;
    Tensor forward(const Tensor& x) {
      seen = fc->weight.shape();
      return fc(x);
    }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<Probe>();
    const Tensor handle = net->fc->weight;
    FSDP fsdp(net, group);
    EXPECT_TRUE(handle.is_same(fsdp.parameters()[0])) << "the same tensor as before";
    EXPECT_EQ(handle.rank(), 1);
    sum(fsdp(Tensor::ones({2, 3}))).backward();
    EXPECT_EQ(net->seen, (Shape{5, 3}));
    EXPECT_EQ(handle.rank(), 1);
    EXPECT_EQ(handle.grad().shape(), handle.shape());
    EXPECT_EQ(net->named_parameters()[0].name, "fc.weight");
  });
}

TEST(Fsdp, RestingMemoryIsTheRanksShare) {
  const auto resting = [](int world, bool zero_copy) {
    std::int64_t bytes = 0;
    comm::LocalWorld(world).run([&](const Group& group) {
      manual_seed(1);
      FSDP fsdp(models::make_mlp("256-512-512-256"), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      optim::AdamW adam(fsdp.parameters(), {});
      for (int step = 0; step < 2; ++step) {
        adam.zero_grad();
        sum(fsdp(Tensor::ones({1, 256}))).backward();
        adam.step();
      }
      const MemoryStats stats = memory_stats();
      const auto of = [&](MemoryCategory category) {
        return stats.live[static_cast<std::size_t>(category)];
      };
      if (group->rank() == 0) {
        bytes = of(MemoryCategory::parameters) + of(MemoryCategory::gradients) +
                of(MemoryCategory::optimizer);
      }
      EXPECT_EQ(of(MemoryCategory::gradients), fsdp.plan().gradient_bytes);
    });
    return bytes;
  };
  const std::int64_t elements = 256 * 512 + 512 * 512 + 512 * 256 + 512 + 512 + 256;
  for (const bool zero_copy : {true, false}) {
    EXPECT_LT(static_cast<double>(resting(4, zero_copy)), 1.02 * 16 * elements / 4) << zero_copy;
    EXPECT_LT(static_cast<double>(resting(1, zero_copy)), 1.02 * 16 * elements) << zero_copy;
  }
}

TEST(Fsdp, Row8MixedDtypesAndFrozenParametersInOneUnit) {
  struct Mixed : nn::ModuleOf<Mixed> {
    nn::Child<nn::Linear> frozen = make_module<nn::Linear>("frozen", 4, 4);
    nn::Child<nn::Linear> wide =
        make_module<nn::Linear>("wide", 4, 4, nn::LinearOptions{.dtype = f64});
    Tensor a = register_parameter("a", Tensor::full({4, 1}, 0.5));
    Tensor b = register_parameter("b", Tensor::full({1, 4}, 0.25));
    Tensor forward(const Tensor& x) {
      const Tensor low = matmul(matmul(x, a), b);
      return wide((frozen(x) + low).to(f64)).to(f32);
    }
  };
  const auto make = [] {
    manual_seed(4);
    auto net = std::make_shared<Mixed>();
    net->frozen->requires_grad_(false);
    return net;
  };
  const auto run = [&](bool sharded) {
    Collected result;
    comm::LocalWorld(2).run([&](const Group& group) {
      const Tensor x = Tensor::full({3, 4}, 0.1 * (group->rank() + 1));
      const auto train = [&](auto& model) {
        optim::SGD sgd(
            [&] {
              std::vector<Tensor> trained;
              for (const Tensor& p : model.parameters()) {
                if (p.requires_grad()) trained.push_back(p);
              }
              return trained;
            }(),
            {.lr = 0.1});
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          sum(model(x)).backward();
          sgd.step();
        }
      };
      if (sharded) {
        FSDP fsdp(make(), group, {.zero_copy = false});
        EXPECT_EQ(fsdp.plan().units.size(), 1u);
        EXPECT_EQ(fsdp.plan().units[0].flats.size(), 3u);
        EXPECT_EQ(fsdp.plan().count(comm::Operation::reduce_scatter), 2);
        train(fsdp);
        result.put(group->rank(), values_of(fsdp.full_state()));
      } else {
        DDP ddp(make(), group);
        train(ddp);
        result.put(group->rank(), values_of(ddp.module().named_parameters()));
      }
    });
    return result.get();
  };
  EXPECT_EQ(run(true), run(false));
}

// Row 5, 9: a scalar, one without elements, one that is not contiguous.
TEST(Fsdp, Row5And9OddParametersTrain) {
  struct Odd : nn::ModuleOf<Odd> {
    Tensor scalar = register_parameter("scalar", Tensor::full({}, 2));
    Tensor none = register_parameter("none", Tensor::zeros({0, 3}));
    Tensor permuted = register_parameter("permuted", Tensor::ones({3, 2}).transpose(0, 1).detach());
    Tensor forward(const Tensor& x) { return sum(permuted * x) * scalar + sum(none); }
  };
  for (const int world : {1, 2, 4}) {
    for (const bool zero_copy : {true, false}) {
      comm::LocalWorld(world).run([&](const Group& group) {
        FSDP fsdp(std::make_shared<Odd>(), group, {.zero_copy = zero_copy});
        optim::SGD sgd(fsdp.parameters(), {.lr = 1});
        fsdp(Tensor::ones({2, 3})).backward();
        sgd.step();
        const State state = values_of(fsdp.full_state());
        EXPECT_EQ(state.at("scalar"), std::vector<double>{2 - 6});
        EXPECT_EQ(state.at("permuted"), std::vector<double>(6, 1 - 2));
      });
    }
  }
}

TEST(Fsdp, TiedWeightsBelongToTheUnitThatContainsBothUses) {
  struct Tied : nn::ModuleOf<Tied> {
    nn::Child<nn::Linear> in =
        make_module<nn::Linear>("in", 4, 4, nn::LinearOptions{.bias = false});
    nn::Child<nn::Linear> mid = make_module<nn::Linear>("mid", 4, 4);
    nn::Child<nn::Linear> out = register_module("out", std::shared_ptr<nn::Linear>(in));
    Tensor forward(const Tensor& x) { return out(mid(in(x))); }
  };
  const auto make = [] {
    manual_seed(9);
    return std::make_shared<Tied>();
  };
  const auto policies = {
      wrap::by_predicate([](const nn::Module&, const std::string& name) { return name == "mid"; }),
      linears()};
  for (const WrapPolicy& policy : policies) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(make(), group);
      FSDP fsdp(make(), group, {.auto_wrap_policy = policy});
      const Tensor x = Tensor::full({2, 4}, group->rank() + 1);
      optim::SGD a(ddp.parameters(), {.lr = 0.1});
      optim::SGD b(fsdp.parameters(), {.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        a.zero_grad();
        b.zero_grad();
        sum(ddp(x)).backward();
        sum(fsdp(x)).backward();
        a.step();
        b.step();
      }
      EXPECT_EQ(values_of(fsdp.full_state()), values_of(ddp.module().named_parameters()));
    });
  }
}

struct Blocks : nn::ModuleOf<Blocks> {
  nn::Child<nn::Linear> first = make_module<nn::Linear>("first", 4, 4);
  nn::Child<nn::Linear> second = make_module<nn::Linear>("second", 4, 4);
  nn::Child<nn::Linear> unused = make_module<nn::Linear>("unused", 4, 4);
  Tensor forward(const Tensor& x, int uses, bool bad) {
    Tensor y = first(x);
    for (int i = 0; i < uses; ++i) y = tanh(second(y));
    if (bad) throw std::range_error("in forward");
    return y + x;
  }
};

std::shared_ptr<Blocks> blocks() {
  manual_seed(21);
  return std::make_shared<Blocks>();
}

TEST(Fsdp, Row20And23UnitsUsedTwiceAndNotAtAll) {
  for (const bool zero_copy : {true, false}) {
    for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
      comm::LocalWorld(2).run([&](const Group& group) {
        DDP ddp(blocks(), group, {.find_unused_parameters = true});
        FSDP fsdp(
            blocks(), group,
            {.sharding_strategy = strategy, .auto_wrap_policy = linears(), .zero_copy = zero_copy});
        const Tensor x = Tensor::full({2, 4}, 0.3 * (group->rank() + 1));
        optim::SGD a(ddp.parameters(), {.lr = 0.1});
        optim::SGD b(fsdp.parameters(), {.lr = 0.1});
        for (int step = 0; step < 3; ++step) {
          a.zero_grad();
          b.zero_grad();
          sum(ddp(x, 1 + step, false)).backward();
          sum(fsdp(x, 1 + step, false)).backward();
          EXPECT_FALSE(fsdp.module().unused->weight.grad().defined());
          a.step();
          b.step();
        }
        EXPECT_EQ(values_of(fsdp.full_state()), values_of(ddp.module().named_parameters()));
      });
    }
  }
}

TEST(Fsdp, TwoForwardsBeforeOneBackward) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(blocks(), group, {.find_unused_parameters = true});
      FSDP fsdp(blocks(), group, {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const Tensor x = Tensor::full({2, 4}, 0.3 * (group->rank() + 1));
      (sum(ddp(x, 1, false)) + sum(ddp(x * 2.0, 2, false))).backward();
      (sum(fsdp(x, 1, false)) + sum(fsdp(x * 2.0, 2, false))).backward();
      optim::SGD a(ddp.parameters(), {.lr = 0.1});
      optim::SGD b(fsdp.parameters(), {.lr = 0.1});
      a.step();
      b.step();
      EXPECT_EQ(values_of(fsdp.full_state()), values_of(ddp.module().named_parameters()));
    });
  }
}

TEST(Fsdp, Row48AnExceptionInForwardLeavesACleanNextStep) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(blocks(), group, {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const Tensor x = Tensor::full({2, 4}, group->rank() + 1);
      sum(fsdp(x, 1, false)).backward();
      const auto expected = fsdp.module().first->weight.grad().template to_vector<float>();
      fsdp.module().zero_grad();
      EXPECT_THROW(fsdp(x, 1, true), std::range_error);
      EXPECT_EQ(fsdp.module().first->weight.rank(), 1);
      sum(fsdp(x, 1, false)).backward();
      EXPECT_EQ(fsdp.module().first->weight.grad().template to_vector<float>(), expected);
    });
  }
}

TEST(Fsdp, Row22ASubUnitAloneAfterTheRoot) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(blocks(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    const Tensor x = Tensor::full({2, 4}, group->rank() + 1);
    sum(fsdp(x, 1, false)).backward();
    fsdp.module().zero_grad();
    sum(fsdp.module().second(x)).backward();
    EXPECT_TRUE(fsdp.module().second->weight.grad().defined());
    EXPECT_FALSE(fsdp.module().first->weight.grad().defined());
    for (const double value : fsdp.module().second->weight.grad().template to_vector<double>()) {
      EXPECT_EQ(value, 3) << "two rows of 1 and of 2, averaged";
    }
  });
}

TEST(Fsdp, AccumulationOfShardedGradientsAdds) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(blocks(), group, {.auto_wrap_policy = linears()});
    const Tensor x = Tensor::full({2, 4}, group->rank() + 1);
    sum(fsdp(x, 1, false)).backward();
    const auto once = fsdp.module().first->bias.grad().template to_vector<float>();
    sum(fsdp(x, 1, false)).backward();
    const auto twice = fsdp.module().first->bias.grad().template to_vector<float>();
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
  });
}

TEST(FsdpPrecision, Row29And30ComputesAndReducesInTheGivenDtypes) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(
          one_weight(), group,
          {.mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32}, .zero_copy = zero_copy});
      const Tensor y = fsdp(number(group->rank() + 1));
      EXPECT_EQ(y.dtype(), bf16);
      sum(y.to(f32)).backward();
      const Tensor& weight = fsdp.module().weight;
      EXPECT_EQ(weight.dtype(), f32);
      if (weight.numel() == 0) return;
      EXPECT_EQ(weight.grad().dtype(), f32);
      EXPECT_EQ(grad_of(weight), 1.5);
      optim::SGD sgd(fsdp.parameters(), {.lr = 1e-3});
      sgd.step();
      EXPECT_FLOAT_EQ(static_cast<float>(weight.item()), 1 - 1.5e-3f) << "the master is f32";
    });
  }
}

TEST(FsdpErrors, Row66ModelsOrOptionsThatDifferAreNamedOnEveryRank) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = std::make_shared<nn::Linear>(3, 3 + group->rank());
    const std::string message = message_of<MismatchError>([&] { FSDP(net, group); });
    EXPECT_NE(message.find("parameter weight"), std::string::npos) << message;
    for (const bool limits : {true, false}) {
      FSDPOptions options;
      if (limits) {
        options.limit_all_gathers = group->rank() == 0;
      } else {
        options.unit_options = [&](const nn::Module&, const std::string&, FSDPUnitOptions unit) {
          if (group->rank() == 1) unit.sharding_strategy = ShardingStrategy::no_shard;
          return unit;
        };
      }
      EXPECT_THROW(FSDP(std::make_shared<nn::Linear>(3, 3), group, options), MismatchError);
    }
    ++raised;
    group->barrier().synchronize();
  });
  EXPECT_EQ(raised, 2);
}

TEST(FsdpErrors, BadArguments) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto layer = std::make_shared<nn::Linear>(3, 3);
    EXPECT_THROW(FSDP(layer, nullptr), InvalidArgument);
    EXPECT_THROW(FSDP(std::make_shared<nn::Sequential>(), group), InvalidArgument);
    EXPECT_THROW(FSDP(layer, group, {.ignored_parameters = {"w"}}), InvalidArgument);
    EXPECT_THROW(FSDP(layer, group, {.mixed_precision = {.param_dtype = i32}}), DTypeError);
    EXPECT_THROW(
        FSDP(layer, group, {.sharding_strategy = ShardingStrategy::hybrid_shard, .shard_size = 3}),
        InvalidArgument);
    const FSDP first(layer, group);
    EXPECT_THROW(FSDP(layer, group), AutogradError) << "wrapped twice";
    EXPECT_THROW(DDP(layer, group), AutogradError);
  });
}

TEST(FsdpErrors, AnExceptionInOneRanksBackwardReachesTheOthers) {
  std::atomic<int> raised{0};
  EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
    FSDP fsdp(blocks(), group, {.auto_wrap_policy = linears()});
    const Tensor y = fsdp(Tensor::ones({2, 4}), 1, false);
    if (group->rank() == 1) {
      register_post_accumulate_grad_hook(fsdp.module().second->weight, [](const Tensor&) {
        throw InvalidArgument("bad gradient");
      });
    }
    const std::string message = message_of<Error>([&] { sum(y).backward(); });
    EXPECT_NE(message.find("bad gradient"), std::string::npos) << message;
    ++raised;
    throw InvalidArgument("end");
  }),
               InvalidArgument);
  EXPECT_EQ(raised, 2);
}

}  // namespace
}  // namespace cohort
