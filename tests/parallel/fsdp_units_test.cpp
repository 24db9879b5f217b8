// Which modules are units, with which options, over which ranks, and how they may be called.

#include <gmock/gmock.h>

#include <atomic>

#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using comm::Operation;
using testing::HasSubstr;

std::vector<std::string> unit_names(const FSDPPlan& plan) {
  std::vector<std::string> names;
  for (const FSDPPlan::Unit& unit : plan.units) names.push_back(unit.name);
  return names;
}

// Trains `steps` steps and returns the state.
template <typename Model>
State trained(Model& model, int rank, int steps = 3) {
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    loss_of(model(inputs_of(step, rank, 0))).backward();
    sgd.step();
  }
  if constexpr (requires { model.full_state(); }) {
    return values_of(model.full_state());
  } else {
    return values_of(model.module().named_parameters());
  }
}

State trained_by_ddp(const Group& group) {
  DDP ddp(small_model(), group);
  return trained(ddp, group->rank());
}

TEST(FsdpUnits, AreChosenByNameByHand) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = wrap::by_name({"3", "7"})});
    EXPECT_EQ(unit_names(fsdp.plan()), (std::vector<std::string>{"3", "7", ""}));
    EXPECT_EQ(trained(fsdp, group->rank()), trained_by_ddp(group));
    const auto wrong = [&](std::vector<std::string> names) {
      return message_of<InvalidArgument>([&] {
        FSDP(small_model(), group, {.auto_wrap_policy = wrap::by_name(std::move(names))});
      });
    };
    EXPECT_THAT(wrong({"3", "33"}), HasSubstr("by_name(3, 33) names '33'"));
    EXPECT_THAT(wrong({"2"}), HasSubstr("no module with parameters")) << "an activation";
  });
}

TEST(FsdpUnits, IgnoredModulesStayWholeAndLocal) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(small_model(), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy, .ignored_modules = {"3"}});
      EXPECT_EQ(unit_names(fsdp.plan()), (std::vector<std::string>{"1", "5", "7", ""}));
      const Tensor weight = fsdp.module().named_parameters()[2].tensor;
      EXPECT_EQ(weight.rank(), 2);
      loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
      const float first = weight.grad().to_vector<float>().front();
      const Tensor both = Tensor::empty({2});
      group->all_gather(both, Tensor::full({1}, first)).wait();
      EXPECT_NE(both.to_vector<float>()[0], both.to_vector<float>()[1]) << "no rank's mean";
      EXPECT_THROW(FSDP(small_model(), group, {.ignored_modules = {"33"}}), InvalidArgument);
    });
  }
}

TEST(FsdpUnits, Row16EachHasAStrategyOfItsOwnAndHybridOnesReduceTwice) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(4).run([&](const Group& group) {
      FSDP fsdp(small_model(), group,
                {.auto_wrap_policy = linears(),
                 .zero_copy = zero_copy,
                 .unit_options =
                     [](const nn::Module&, const std::string& name, FSDPUnitOptions options) {
                       if (name == "3") options.sharding_strategy = ShardingStrategy::hybrid_shard;
                       if (name == "5") options.sharding_strategy = ShardingStrategy::shard_grad_op;
                       if (name == "7") options.sharding_strategy = ShardingStrategy::no_shard;
                       return options;
                     },
                 .shard_size = 2});
      const FSDPPlan plan = fsdp.plan();
      EXPECT_EQ(plan.units[1].shard_size, 2);
      EXPECT_EQ(plan.units[3].shard_size, 1);
      EXPECT_EQ(plan.count(Operation::reduce_scatter), 3);
      EXPECT_EQ(plan.count(Operation::all_reduce), 3) << "hybrid, no_shard, which were used";
      EXPECT_EQ(plan.count(Operation::all_gather), zero_copy ? 0 : 3)
          << "those of forward are still there in backward";
      const State sharded = trained(fsdp, group->rank());
      const State replicated = trained_by_ddp(group);
      for (const auto& [name, values] : replicated) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          EXPECT_NEAR(sharded.at(name)[i], values[i], 1e-6) << name;  // hybrid sums by pairs
        }
      }
    });
  }
}

TEST(FsdpUnits, AMeshSaysWhoSharesAndWhoReplicates) {
  comm::LocalWorld(4).run([](const Group& group) {
    const comm::DeviceMesh mesh(group, {{"dp_replicate", 2}, {"dp_shard", 2}});
    const FSDPOptions hybrid{.sharding_strategy = ShardingStrategy::hybrid_shard,
                             .auto_wrap_policy = linears()};
    FSDP over_mesh(small_model(), mesh, hybrid);
    EXPECT_EQ(over_mesh.plan().units[0].shard_size, 2);
    FSDPOptions sized = hybrid;
    sized.shard_size = 2;
    FSDP by_size(small_model(), group, sized);
    EXPECT_EQ(trained(over_mesh, group->rank()), trained(by_size, group->rank()));
    FSDP full(small_model(), mesh, {.auto_wrap_policy = linears()});
    EXPECT_EQ(full.plan().units[0].shard_size, 4) << "full_shard shards over all";
    sized.shard_size = 4;
    EXPECT_THROW(FSDP(small_model(), mesh, sized), InvalidArgument);
    const comm::DeviceMesh deep(group, {{"a", 2}, {"b", 1}, {"c", 2}});
    EXPECT_THAT(message_of<InvalidArgument>([&] { FSDP(small_model(), deep, hybrid); }),
                HasSubstr("submesh()"));
    FSDP slice(small_model(), deep.submesh({"c"}), {});
    EXPECT_EQ(slice.plan().world_size, 2);
  });
}

// Two linears, of which each method uses one.
struct TwoHeads : nn::ModuleOf<TwoHeads> {
  nn::Child<nn::Linear> in = make_module<nn::Linear>("in", 4, 6);
  nn::Child<nn::Linear> out = make_module<nn::Linear>("out", 6, 3);
  Tensor scale = register_parameter("scale", Tensor::full({6}, 0.5));
  Tensor forward(const Tensor& x) { return out(encode(x)); }
  Tensor encode(const Tensor& x) { return in(x)*scale; }
};

std::shared_ptr<TwoHeads> two_heads() {
  manual_seed(8);
  return std::make_shared<TwoHeads>();
}

TEST(FsdpEntryPoints, Row49InvokeRunsAnotherMethodLikeForward) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(two_heads(), group, {.find_unused_parameters = true});
      FSDP fsdp(two_heads(), group,
                {.auto_wrap_policy = wrap::by_name({"out"}), .zero_copy = zero_copy});
      const Tensor x = Tensor::full({2, 4}, group->rank() + 1);
      sum(ddp(x)).backward();
      sum(fsdp(x)).backward();
      fsdp.module().zero_grad();
      sum(fsdp.invoke(&TwoHeads::encode, x)).backward();
      EXPECT_TRUE(fsdp.module().scale.grad().defined());
      EXPECT_FALSE(fsdp.module().out->weight.grad().defined());
      EXPECT_EQ(fsdp.module().scale.rank(), 1);
      double total = 0;
      for (const double g : fsdp.module().scale.grad().template to_vector<double>()) total += g;
      const Tensor shared = Tensor::full({1}, total);
      group->all_reduce(shared).wait();
      // By hand: the mean over ranks of the sum of in(x).
      const auto plain = two_heads();
      double expected = 0;
      for (const int rank : {0, 1}) {
        expected += sum(plain->in(Tensor::full({2, 4}, rank + 1))).item() / 2;
      }
      EXPECT_NEAR(shared.item(), expected, 1e-5);
    });
  }
}

TEST(FsdpEntryPoints, Row49AMethodThatIsCalledDirectlySaysWhatToDo) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(two_heads(), group);
    const std::string message = message_of<InvalidArgument>([&] {
      fsdp.module().encode(Tensor::ones({2, 4}));
    });
    EXPECT_THAT(message, testing::AllOf(HasSubstr("module 'in'"), HasSubstr("unit 'root'"),
                                        HasSubstr("invoke")));
    sum(fsdp(Tensor::ones({2, 4}))).backward();
  });
}

TEST(FsdpErrors, Row65RanksThatTakeDifferentBranchesAreToldOnAllRanks) {
  struct Branch : nn::ModuleOf<Branch> {
    nn::Child<nn::Linear> left = make_module<nn::Linear>("left", 4, 4);
    nn::Child<nn::Linear> right = make_module<nn::Linear>("right", 4, 4);
    Tensor forward(const Tensor& x, bool goes_left) { return goes_left ? left(x) : right(x); }
  };
  for (const bool zero_copy : {true, false}) {
    std::atomic<int> raised{0};
    EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(std::make_shared<Branch>(), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const std::string message = message_of<MismatchError>([&] {
        sum(fsdp(Tensor::ones({2, 4}), group->rank() == 0)).backward();
        group->barrier().synchronize();
      });
      EXPECT_THAT(message, testing::AllOf(HasSubstr("left"), HasSubstr("right")));
      ++raised;
      throw MismatchError(message);
    }),
                 MismatchError);
    EXPECT_EQ(raised, 2) << zero_copy;
  }
}

}  // namespace
}  // namespace cohort
