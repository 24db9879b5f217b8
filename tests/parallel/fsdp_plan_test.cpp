// What FSDP says a step will do is what the step's counters say it did.

#include "cohort/parallel/fsdp_plan.h"

#include <gmock/gmock.h>

#include "cohort/nn/conv.h"
#include "cohort/optim/adam.h"
#include "comm/worlds.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using comm::Operation;
using testing::HasSubstr;

Tensor classes(Device device) {
  return device.type == DeviceType::meta ? Tensor::empty({4}, {DType::i64, device, false})
                                         : Tensor::from<std::int64_t>({0, 3, 1, 4}, {4});
}

struct Setting {
  std::string name;
  FSDPOptions options;
};

std::vector<Setting> settings(int world) {
  std::vector<Setting> all;
  for (const bool zero_copy : {true, false}) {
    const std::string kind = zero_copy ? ", zero-copy" : ", copying";
    for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op,
                                ShardingStrategy::no_shard}) {
      all.push_back(
          {std::string(name(strategy)) + kind,
           {.sharding_strategy = strategy, .auto_wrap_policy = linears(), .zero_copy = zero_copy}});
    }
    if (world == 4) {
      all.push_back({"hybrid" + kind,
                     {.sharding_strategy = ShardingStrategy::hybrid_shard,
                      .auto_wrap_policy = linears(),
                      .zero_copy = zero_copy,
                      .shard_size = 2}});
    }
    all.push_back({"bf16" + kind,
                   {.auto_wrap_policy = linears(),
                    .mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32},
                    .zero_copy = zero_copy}});
    all.push_back({"bf16 gradients" + kind,
                   {.auto_wrap_policy = linears(),
                    .mixed_precision = {.param_dtype = bf16, .keep_low_precision_grads = true},
                    .zero_copy = zero_copy}});
  }
  for (const auto prefetch : {BackwardPrefetch::none, BackwardPrefetch::post}) {
    for (const bool forward : {true, false}) {
      all.push_back({str("prefetch ", prefetch, forward ? " and forward" : ""),
                     {.auto_wrap_policy = linears(),
                      .backward_prefetch = prefetch,
                      .forward_prefetch = forward,
                      .zero_copy = false}});
    }
  }
  all.push_back({"no limit",
                 {.auto_wrap_policy = linears(),
                  .forward_prefetch = true,
                  .limit_all_gathers = false,
                  .zero_copy = false}});
  all.push_back(
      {"mixed strategies",
       {.auto_wrap_policy = linears(),
        .zero_copy = false,
        .unit_options = [](const nn::Module&, const std::string& name, FSDPUnitOptions options) {
          if (name == "3") options.sharding_strategy = ShardingStrategy::no_shard;
          if (name == "5") options.sharding_strategy = ShardingStrategy::shard_grad_op;
          return options;
        }}});
  return all;
}

// Compares one step to the plan that was made before it.
void expect_as_planned(const FSDPPlanCheck& check, const std::string& name) {
  for (const FSDPPlanCheck::Row& row : check.rows) {
    if (row.what.find(": ") != std::string::npos || row.what == "parameters at rest") {
      EXPECT_EQ(row.planned, row.measured) << name << ", " << row.what;
    }
  }
  EXPECT_NEAR(check.row("peak").ratio(), 1, 0.01) << name << '\n' << check;
}

class FsdpPlanOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, FsdpPlanOf, testing::Values(1, 2, 4));

TEST_P(FsdpPlanOf, AStepHoldsForEveryStrategy) {
  const int world = GetParam();
  for (const Setting& setting : settings(world)) {
    comm::LocalWorld(world).run([&](const Group& group) {
      manual_seed(11);
      FSDP fsdp(models::make_mlp("12-200-300-200-5"), group, setting.options);
      optim::AdamW adam(fsdp.parameters(), {});
      const auto loss = [&](Device device, int step) {
        Tensor x = inputs_of(step, group->rank(), 0);
        if (device.type == DeviceType::meta) x = parallel::on_meta(x);
        return cross_entropy(fsdp(x).to(f32), classes(device));
      };
      for (int step = 0; step < 3; ++step) {
        adam.zero_grad();
        fsdp.plan([&] { return loss(Device::meta(), step); });
        loss(Device::cpu(), step).backward();
        // The first step knows no order to prefetch by.
        if (step > 0 || !setting.options.forward_prefetch) {
          expect_as_planned(fsdp.check_plan(), setting.name + str(", step ", step));
        }
        adam.step();
      }
    });
  }
}

TEST_P(FsdpPlanOf, ACnnHoldsFromExampleInputs) {
  comm::LocalWorld(GetParam()).run([&](const Group& group) {
    manual_seed(3);
    FSDP fsdp(models::make_fashion_cnn(), group,
              {.auto_wrap_policy = wrap::by_type<nn::Linear, nn::Conv2d>(), .zero_copy = false});
    const Tensor x = Tensor::ones({6, 1, 28, 28});
    fsdp.plan(x);
    const Tensor y = fsdp(x);
    backward({y}, {Tensor::ones(y.shape())});
    expect_as_planned(fsdp.check_plan(), "cnn");
  });
}

TEST(FsdpPlan, OverGlooHoldsToo) {
  if (!test::is_built(test::Over::gloo)) GTEST_SKIP() << "built without Gloo";
  for (const auto over : {test::Over::gloo, test::Over::hierarchical}) {
    test::World(over, 4).run([&](const Group& group) {
      manual_seed(11);
      FSDP fsdp(models::make_mlp("12-200-300-200-5"), group, {.auto_wrap_policy = linears()});
      const Tensor x = inputs_of(0, group->rank(), 0);
      fsdp.plan(x);
      const Tensor y = fsdp(x);
      backward({y}, {Tensor::ones(y.shape())});
      expect_as_planned(fsdp.check_plan(), test::name(over));
    });
  }
}

TEST(FsdpPlan, ChangesNothing) {
  comm::LocalWorld(2).run([](const Group& group) {
    manual_seed(5);
    FSDP fsdp(models::make_mlp("12-40-24-5"), group, {.auto_wrap_policy = linears()});
    const Tensor x = inputs_of(0, group->rank(), 0);
    loss_of(fsdp(x)).backward();
    const State before = values_of(fsdp.full_state());
    const auto grads = [&] {
      std::vector<std::vector<float>> list;
      for (const Tensor& p : fsdp.parameters()) list.push_back(p.grad().to_vector<float>());
      return list;
    };
    const auto gradients = grads();
    const PhiloxState random = Context::current().generator.state();
    const auto live = memory_stats().live_total;
    const auto calls = group->stats().total().count;
    fsdp.plan(x);
    EXPECT_EQ(group->stats().total().count, calls);
    EXPECT_EQ(memory_stats().live_total, live);
    EXPECT_EQ(memory_stats(Device::meta()).live_total, 0);
    EXPECT_EQ(Context::current().generator.state().offset, random.offset);
    EXPECT_EQ(grads(), gradients);
    EXPECT_EQ(values_of(fsdp.full_state()), before);
  });
}

TEST(FsdpPlan, LeavesEverythingAsItWasWhenTheStepThrows) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    const Tensor x = inputs_of(0, group->rank(), 0);
    EXPECT_THROW(fsdp.plan(Tensor::ones({2, 7})), Error) << "a wrong shape";
    EXPECT_THROW(fsdp.plan([&]() -> Tensor { throw std::range_error("mine"); }), std::range_error);
    EXPECT_THROW(fsdp.plan([&] {
      const Tensor y = sum(fsdp(parallel::on_meta(x)));
      register_hook(y, [](const Tensor&) -> Tensor { throw std::range_error("in backward"); });
      return y;
    }),
                 std::range_error);
    EXPECT_THROW(fsdp.plan([&] { return sum(Tensor::ones({2}, {.requires_grad = true})); }),
                 InvalidArgument)
        << "no step of the module";
    loss_of(fsdp(x)).backward();
    EXPECT_EQ(fsdp.parameters()[0].device(), Device::cpu());
  });
}

TEST(FsdpPlan, WithoutInputsKnowsTrafficAndRestAndSaysWhatIsMissing) {
  for (const int world : {1, 2}) {
    comm::LocalWorld(world).run([&](const Group& group) {
      FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
      const FSDPPlan assumed = fsdp.plan();
      EXPECT_FALSE(assumed.rehearsed);
      std::ostringstream text;
      text << assumed;
      EXPECT_THAT(text.str(), HasSubstr("activations are not included"));
      loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
      for (const FSDPPlanCheck::Row& row : fsdp.check_plan().rows) {
        EXPECT_EQ(row.planned, row.measured) << row.what;
      }
      const FSDPPlan rehearsed = fsdp.plan(inputs_of(0, 0, 0));
      EXPECT_EQ(rehearsed.moved_bytes(), assumed.moved_bytes());
      EXPECT_EQ(rehearsed.collectives.size(), assumed.collectives.size());
      const auto i = static_cast<std::size_t>(MemoryCategory::parameters);
      EXPECT_LE(rehearsed.rise[i], assumed.rise[i]);
    });
  }
}

TEST(FsdpPlan, Row17CollectivesComeInTheOrderOfAStep) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    std::vector<std::string> order;
    for (const FSDPPlan::Collective& one : fsdp.plan(inputs_of(0, 0, 0)).collectives) {
      order.push_back(str(one.operation, ' ', one.owner));
    }
    EXPECT_EQ(order, (std::vector<std::string>{
                         "all_gather 1", "all_gather 3", "all_gather 5", "all_gather 7",  // forward
                         // Units 7 and 5 are still there; each further one comes a unit ahead.
                         "reduce_scatter 7", "all_gather 3", "reduce_scatter 5", "all_gather 1",
                         "reduce_scatter 3", "reduce_scatter 1", "all_reduce used parameters"}));
  });
}

TEST(FsdpPlan, TwoUnitsAndTheRootAreGatheredAtMostHoweverDeepTheModel) {
  for (const int layers : {1, 2, 3, 8}) {
    for (const bool forward_prefetch : {false, true}) {
      comm::LocalWorld(2).run([&](const Group& group) {
        std::string widths = "16";
        for (int i = 0; i < layers; ++i) widths += "-16";
        FSDP fsdp(models::make_mlp(widths), group,
                  {.auto_wrap_policy = linears(),
                   .forward_prefetch = forward_prefetch,
                   .zero_copy = false});
        const Tensor x = Tensor::ones({2, 16});
        fsdp.plan(x);
        for (int step = 0; step < 2; ++step) {
          fsdp.module().zero_grad();
          sum(fsdp(x)).backward();
        }
        // 16 x 16 weights and 16 biases in f32, padded to lines of 64 bytes for each of two ranks.
        const std::int64_t unit = ((16 * 16 + 16) * 4 + 127) / 128 * 128;
        EXPECT_EQ(fsdp.plan(x).rise[static_cast<std::size_t>(MemoryCategory::parameters)],
                  std::min(layers, 2) * unit);
      });
    }
  }
}

TEST(FsdpPlan, CheckNeedsAPlanAndAStep) {
  comm::LocalWorld(1).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    EXPECT_THROW(fsdp.check_plan(), InvalidArgument);
    fsdp.plan(inputs_of(0, 0, 0));
    EXPECT_THROW(fsdp.check_plan(), InvalidArgument);
    {
      const NoGrad no_grad;
      fsdp(inputs_of(0, 0, 0));
    }
    EXPECT_THROW(fsdp.check_plan(), InvalidArgument) << "evaluation is no step";
    {
      const auto guard = fsdp.no_sync();
      loss_of(fsdp(inputs_of(0, 0, 0))).backward();
      EXPECT_THROW(fsdp.plan(inputs_of(0, 0, 0)), InvalidArgument) << "accumulating";
    }
  });
}

TEST(FsdpPlan, IsRefusedWhileParametersAreGathered) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    const Tensor x = inputs_of(0, group->rank(), 0);
    fsdp.unshard();
    EXPECT_THAT(message_of<InvalidArgument>([&] { fsdp.plan(x); }), HasSubstr("reshard()"));
    fsdp.reshard();
    fsdp.plan(x);
    {
      const auto guard = fsdp.no_sync();
      loss_of(fsdp(x)).backward();
    }
    EXPECT_THROW(fsdp.check_plan(), InvalidArgument) << "that was no step with a reduction";
    const Tensor y = fsdp(x);
    backward({y}, {Tensor::ones(y.shape())});
    EXPECT_NO_THROW(fsdp.check_plan());
  });
}

TEST(FsdpPlan, PrintsAsATable) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    std::ostringstream text;
    text << fsdp.plan(inputs_of(0, 0, 0));
    for (const char* part : {"full_shard", "reduce_scatter", "used parameters", "activations"}) {
      EXPECT_THAT(text.str(), HasSubstr(part));
    }
  });
}

}  // namespace
}  // namespace cohort
