// What FSDP does when memory runs out, what it holds at rest, and what it gives back. Numbers in
// names are rows of the FSDP list in docs/conformance.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <tuple>

#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using testing::HasSubstr;

Allocator& allocator() {
  return *Context::current().runtime()->allocator(Device::cpu());
}

// Leaves room for `bytes` more until the scope ends.
class Room {
 public:
  explicit Room(std::int64_t bytes) { allocator().set_limit(memory_stats().live_total + bytes); }
  ~Room() { allocator().set_limit(0); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

std::int64_t live(MemoryCategory category) {
  return memory_stats().live[static_cast<std::size_t>(category)];
}

// Units of 128 KiB, and activations of a few.
std::shared_ptr<nn::Sequential> wide_model() {
  manual_seed(3);
  return models::make_mlp("64-512-64-512-8");
}
constexpr std::int64_t kUnit = 64 * 512 * 4;

Tensor wide_loss(auto& model, int rank) {
  return sum(model(Tensor::full({2, 64}, 0.1 * (rank + 1))));
}

State gradients_of(const nn::Module& module) {
  State state;
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (tensor.grad().defined()) state[name] = tensor.grad().to_vector<double>();
  }
  return state;
}

void expect_at_rest(const nn::Module& module) {
  for (const auto& [name, tensor] : module.named_parameters()) EXPECT_EQ(tensor.rank(), 1) << name;
}

using Setting = std::tuple<ShardingStrategy, bool>;

std::string setting_name(const testing::TestParamInfo<Setting>& info) {
  return str(std::get<0>(info.param), std::get<1>(info.param) ? "_zero_copy" : "_copying");
}

class FsdpOutOfMemory : public testing::TestWithParam<Setting> {
 protected:
  static ShardingStrategy strategy() { return std::get<0>(GetParam()); }
  static bool hybrid() {
    return strategy() == ShardingStrategy::hybrid_shard ||
           strategy() == ShardingStrategy::hybrid_shard_zero2;
  }
  static int world() { return hybrid() ? 4 : 2; }
  static FSDPOptions options() {
    return {.sharding_strategy = strategy(),
            .auto_wrap_policy = linears(),
            .zero_copy = std::get<1>(GetParam()),
            .shard_size = hybrid() ? 2 : 0};
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, FsdpOutOfMemory,
    testing::Combine(testing::Values(ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op,
                                     ShardingStrategy::no_shard, ShardingStrategy::hybrid_shard,
                                     ShardingStrategy::hybrid_shard_zero2),
                     testing::Bool()),
    setting_name);

// Rank 0 alone is short of it.
TEST_P(FsdpOutOfMemory, InForwardIsEveryRanksErrorAndTheNextStepIsClean) {
  // Nothing is gathered where ranks share the parameters' memory, or have all of them.
  const bool gathers = !std::get<1>(GetParam()) && strategy() != ShardingStrategy::no_shard;
  comm::LocalWorld(world()).run([&](const Group& group) {
    FSDP fsdp(wide_model(), group, options());
    wide_loss(fsdp, group->rank()).backward();
    const State expected = gradients_of(fsdp.module());
    fsdp.module().zero_grad();
    const std::string message = message_of<OutOfMemory>([&] {
      const NoGrad no_grad;
      std::optional<Room> room;
      if (group->rank() == 0) room.emplace(kUnit / 2);
      wide_loss(fsdp, group->rank());
    });
    EXPECT_EQ(gathers, !message.empty());
    if (gathers) {
      EXPECT_THAT(message, HasSubstr("no room to gather"));
      EXPECT_THAT(message, HasSubstr("bytes of unit '"));
    }
    expect_at_rest(fsdp.module());
    EXPECT_EQ(group->failure(), nullptr);
    wide_loss(fsdp, group->rank()).backward();
    EXPECT_EQ(gradients_of(fsdp.module()), expected);
  });
}

TEST_P(FsdpOutOfMemory, InBackwardKeepsEarlierGradientsAndTheNextStepIsClean) {
  comm::LocalWorld(world()).run([&](const Group& group) {
    FSDP fsdp(wide_model(), group, options());
    wide_loss(fsdp, group->rank()).backward();
    const State once = gradients_of(fsdp.module());
    const std::int64_t at_rest = memory_stats().live_total;
    const std::string message = message_of<OutOfMemory>([&] {
      const Tensor loss = wide_loss(fsdp, group->rank());
      std::optional<Room> room;
      if (group->rank() == 0) room.emplace(kUnit / 4);
      loss.backward();
    });
    EXPECT_THAT(message, HasSubstr("no room for the gradients of unit"));
    EXPECT_EQ(group->failure(), nullptr);
    expect_at_rest(fsdp.module());
    EXPECT_EQ(gradients_of(fsdp.module()), once);
    EXPECT_EQ(memory_stats().live_total, at_rest);
    wide_loss(fsdp, group->rank()).backward();
    State twice = once;
    for (auto& [name, values] : twice) {
      for (double& value : values) value *= 2;
    }
    EXPECT_EQ(gradients_of(fsdp.module()), twice);
  });
}

// The first units are sharded already when the last one, the largest, has no room.
TEST_P(FsdpOutOfMemory, AtConstructionLeavesTheModuleAsItWas) {
  comm::LocalWorld(world()).run([&](const Group& group) {
    manual_seed(5);
    const auto net = models::make_mlp("64-8-256-512");
    const Tensor handle = net->parameters()[0];
    const State before = values_of(net->named_parameters());
    const std::int64_t held = memory_stats().live_total;
    const std::string message = message_of<OutOfMemory>([&] {
      std::optional<Room> room;
      if (group->rank() == 1) room.emplace(64 * 1024);
      FSDP(net, group, options());
    });
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(group->failure(), nullptr);
    EXPECT_EQ(handle.shape(), (Shape{8, 64}));
    EXPECT_EQ(values_of(net->named_parameters()), before);
    // Whole parameters of a unit lie side by side now, with padding.
    EXPECT_NEAR(static_cast<double>(memory_stats().live_total), static_cast<double>(held), 4096);
    FSDP fsdp(net, group, options());
    EXPECT_EQ(values_of(fsdp.full_state()), before);
  });
}

// A prefetch needs a second slot; without room for it the unit is gathered when it is needed.
TEST(FsdpMemory, APrefetchWithoutRoomIsLeftOut) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(wide_model(), group,
              {.auto_wrap_policy = linears(), .forward_prefetch = true, .zero_copy = false});
    const NoGrad no_grad;
    const double expected = wide_loss(fsdp, group->rank()).item();
    const Room room(kUnit + kUnit / 2);
    group->reset_stats();
    EXPECT_EQ(wide_loss(fsdp, group->rank()).item(), expected);
    EXPECT_EQ(group->stats().of(comm::Operation::all_gather).count, 4);
    EXPECT_LT(memory_stats().live_total, allocator().limit());
  });
}

// Its own error, not one that all ranks have agreed on.
TEST(FsdpMemory, AnExceptionOfAnotherKindInBackwardStillEndsTheGroup) {
  EXPECT_THROW(comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(wide_model(), group, {.auto_wrap_policy = linears()});
    const Tensor loss = wide_loss(fsdp, group->rank());
    register_post_accumulate_grad_hook(fsdp.parameters()[2], [&](const Tensor&) {
      if (group->rank() == 1) throw OutOfMemory("of the program's own");
    });
    EXPECT_THROW(loss.backward(), Error);
    EXPECT_NE(group->failure(), nullptr);
    throw OutOfMemory("end");
  }),
               OutOfMemory);
}

class FsdpRelease : public FsdpOutOfMemory {};

INSTANTIATE_TEST_SUITE_P(
    All, FsdpRelease,
    testing::Combine(testing::Values(ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op,
                                     ShardingStrategy::no_shard, ShardingStrategy::hybrid_shard),
                     testing::Bool()),
    setting_name);

TEST_P(FsdpRelease, Row63MemoryReturnsToRestAndToTheBaseline) {
  comm::LocalWorld(world()).run([&](const Group& group) {
    const auto live_total = [] { return memory_stats().live_total; };
    const std::int64_t baseline = live_total();
    {
      FSDP fsdp(wide_model(), group, options());
      const FSDPPlan plan = fsdp.plan();
      EXPECT_EQ(live(MemoryCategory::parameters), plan.parameter_bytes);
      optim::AdamW adam(fsdp.parameters(), {});
      std::int64_t rest = 0;
      for (int step = 0; step < 3; ++step) {
        wide_loss(fsdp, group->rank()).backward();
        EXPECT_EQ(live(MemoryCategory::parameters), plan.parameter_bytes);
        EXPECT_EQ(live(MemoryCategory::gradients), plan.gradient_bytes);
        adam.step();
        adam.zero_grad();
        EXPECT_EQ(live(MemoryCategory::gradients), 0);
        if (step > 0) {
          EXPECT_EQ(live_total(), rest);
        }
        rest = live_total();
      }
      {
        const NoGrad no_grad;
        wide_loss(fsdp, group->rank());
      }
      EXPECT_EQ(live_total(), rest);
      fsdp.full_state();
      EXPECT_EQ(live_total(), rest);
      fsdp.summon_full_params([] {});
      EXPECT_EQ(live_total(), rest);
      // Whole, between forward and backward, when the wrapper goes.
      const Tensor loss = wide_loss(fsdp, group->rank());
    }
    EXPECT_EQ(live_total(), baseline);
  });
}

TEST_P(FsdpRelease, TheWrappersEndLeavesRowsWithoutHooks) {
  comm::LocalWorld(world()).run([&](const Group& group) {
    const auto net = wide_model();
    std::int64_t shards = 0;
    const std::int64_t baseline = memory_stats().live_total;
    {
      FSDP fsdp(net, group, options());
      shards = fsdp.plan().parameter_bytes;
      const Tensor loss = wide_loss(fsdp, group->rank());
    }
    expect_at_rest(*net);
    EXPECT_EQ(live(MemoryCategory::parameters), shards);
    EXPECT_LE(memory_stats().live_total, baseline + shards);
    for (const Tensor& parameter : net->parameters()) EXPECT_EQ(grad_manager(parameter), "");
    EXPECT_THROW((*net)(Tensor::ones({1, 64})), ShapeError) << "nothing gathers any more";
  });
}

TEST_P(FsdpRelease, RestoreMakesTheModuleWholeAndItCanBeWrappedAgain) {
  comm::LocalWorld(world()).run([&](const Group& group) {
    const auto net = wide_model();
    const Tensor handle = net->parameters()[0];
    const Shape shape = handle.shape();
    FSDP fsdp(net, group, options());
    FSDP other(wide_model(), group, options());  // goes on without
    optim::AdamW a(fsdp.parameters(), {.lr = 0.01});
    optim::AdamW b(other.parameters(), {.lr = 0.01});
    const auto step = [&](auto& model, auto& optimizer) {
      optimizer.zero_grad();
      wide_loss(model, group->rank()).backward();
      optimizer.step();
    };
    step(fsdp, a);
    step(other, b);
    fsdp.restore();
    EXPECT_EQ(handle.shape(), shape);
    EXPECT_TRUE(handle.requires_grad());
    EXPECT_FALSE(handle.grad().defined());
    EXPECT_EQ(values_of(net->named_parameters()), values_of(other.full_state()));
    EXPECT_THROW(fsdp(Tensor::ones({1, 64})), InvalidArgument);
    EXPECT_THROW(fsdp.plan(), InvalidArgument);
    sum((*net)(Tensor::ones({1, 64}))).backward();
    EXPECT_EQ(handle.grad().shape(), shape);
    net->zero_grad();
    FSDP again(net, group, options());
    optim::AdamW c(again.parameters(), {.lr = 0.01});
    optim::AdamW d(other.parameters(), {.lr = 0.01});
    step(again, c);
    step(other, d);
    EXPECT_EQ(values_of(again.full_state()), values_of(other.full_state()));
  });
}

TEST(FsdpRestore, WithoutRoomOnOneRankNothingChanges) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(wide_model(), group, {.auto_wrap_policy = linears()});
    const State before = values_of(fsdp.full_state());
    {
      std::optional<Room> room;
      if (group->rank() == 1) room.emplace(2 * kUnit);
      EXPECT_THROW(fsdp.restore(), OutOfMemory);
    }
    expect_at_rest(fsdp.module());
    wide_loss(fsdp, group->rank()).backward();
    EXPECT_EQ(values_of(fsdp.full_state()), before);
  });
}

// The tensors stay the same ones.
TEST(FsdpOptimizer, MadeBeforeWrappingWithoutAStepItTrainsAsOneMadeAfter) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto train = [&](bool before) {
      const auto net = wide_model();
      std::unique_ptr<optim::AdamW> adam;
      if (before) adam = std::make_unique<optim::AdamW>(net->parameters(), optim::AdamWOptions{});
      FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
      if (!before) adam = std::make_unique<optim::AdamW>(net->parameters(), optim::AdamWOptions{});
      for (int step = 0; step < 2; ++step) {
        adam->zero_grad();
        wide_loss(fsdp, group->rank()).backward();
        adam->step();
      }
      return values_of(fsdp.full_state());
    };
    EXPECT_EQ(train(true), train(false));
  });
}

TEST(FsdpOptimizer, ThatHasSteppedBeforeWrappingIsRefusedOnEveryRank) {
  for (const int world : {1, 2, 4}) {
    std::atomic<int> refused{0};
    comm::LocalWorld(world).run([&](const Group& group) {
      // Of so few elements that some ranks own none.
      manual_seed(1);
      const auto net = std::make_shared<nn::Linear>(2, 2);
      optim::AdamW adam(net->parameters(), {});
      sum((*net)(Tensor::ones({1, 2}))).backward();
      adam.step();
      net->zero_grad();
      FSDP fsdp(net, group);
      sum(fsdp(Tensor::ones({1, 2}))).backward();
      const std::string message = message_of<ShapeError>([&] { adam.step(); });
      EXPECT_THAT(message, HasSubstr("make the optimizer after FSDP"));
      ++refused;
    });
    EXPECT_EQ(refused, world);
  }
}

// Claims to need whole parameters, as one that scales each by its gradient's norm would.
class NeedsWhole final : public optim::Optimizer {
 public:
  explicit NeedsWhole(const std::vector<Tensor>& parameters) { add_group(parameters); }
  double lr(std::size_t) const override { return 0; }
  void set_lr(double, std::size_t) override {}

 private:
  std::vector<std::string> state_names(std::size_t) const override { return {}; }
  void update(std::size_t, const Range& range, double) override { range.param.detach().zero_(); }
};

TEST(FsdpOptimizer, ThatIsNotElementWiseIsRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto net = wide_model();
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    NeedsWhole optimizer(fsdp.parameters());
    wide_loss(fsdp, group->rank()).backward();
    const State before = values_of(fsdp.full_state());
    EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }), HasSubstr("element-wise"));
    EXPECT_EQ(values_of(fsdp.full_state()), before);
    fsdp.restore();
    sum((*net)(Tensor::ones({1, 64}))).backward();
    optimizer.step();
    for (const double value : net->parameters()[0].to_vector<double>()) EXPECT_EQ(value, 0);
  });
}

TEST(FsdpOptimizer, WithRowsOfAnEarlierWrapperIsRefusedAfterRestore) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto net = wide_model();
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    optim::AdamW adam(fsdp.parameters(), {});
    wide_loss(fsdp, group->rank()).backward();
    adam.step();
    fsdp.restore();
    sum((*net)(Tensor::ones({1, 64}))).backward();
    EXPECT_THROW(adam.step(), ShapeError);
  });
}

// 16 bytes a parameter in all: the parameter, its gradient and AdamW's two values.
TEST(FsdpMemory, AtRestEveryRankHoldsItsShareAndTheHostHoldsEverythingOnce) {
  const std::string widths = "256-512-512-256";
  const double elements = 256 * 512 + 512 * 512 + 512 * 256 + 512 + 512 + 256;
  const auto resting = [&](int world, bool zero_copy) {
    std::vector<double> ranks(static_cast<std::size_t>(world));
    comm::LocalWorld(world).run([&](const Group& group) {
      manual_seed(1);
      FSDP fsdp(models::make_mlp(widths), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      optim::AdamW adam(fsdp.parameters(), {});
      sum(fsdp(Tensor::ones({1, 256}))).backward();
      adam.step();
      ranks[static_cast<std::size_t>(group->rank())] =
          static_cast<double>(memory_stats().live_total);
    });
    return ranks;
  };
  for (const bool zero_copy : {true, false}) {
    double host = 0;
    for (const double rank : resting(4, zero_copy)) {
      EXPECT_LE(rank / (16 * elements / 4), 1.02) << zero_copy;
      host += rank;
    }
    EXPECT_LE(host / resting(1, zero_copy)[0], 1.02) << zero_copy;
  }
}

}  // namespace
}  // namespace cohort
