// The behaviour of DDP on two thread ranks, with exact values. Rank r gives the inputs x = r + 1.

#include "cohort/parallel/ddp.h"

#include <gtest/gtest.h>

#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

using Values = std::vector<double>;

class DdpTest : public testing::TestWithParam<bool> {
 protected:
  DDPOptions options() const { return {.gradient_as_bucket_view = GetParam()}; }

  // Runs `fn` on both ranks with a one-weight layer under DDP; what it pushes comes back by rank.
  PerRank run(
      const std::function<void(DDP<nn::Linear>&, Tensor, std::function<void(double)>)>& fn) {
    PerRank values(2);
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(one_weight(), group, options());
      fn(ddp, number(group->rank() + 1), [&](double v) { values.push(group->rank(), v); });
    });
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(BucketViews, DdpTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Views" : "Copies"; });

TEST_P(DdpTest, Row1AveragesGradientsOverRanks) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    sum(ddp(x)).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1.5}));
  EXPECT_EQ(got[1], (Values{1.5}));
}

TEST_P(DdpTest, Row2DividesTheMeanOfALossOverItsElements) {
  PerRank values(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    struct Shift : nn::ModuleOf<Shift> {
      Tensor p = register_parameter("p", Tensor::ones({2, 2}));
      Tensor forward(double shift) { return p + shift; }
    };
    DDP ddp(std::make_shared<Shift>(), group, options());
    mean(ddp(8.0 + group->rank())).backward();
    values.push(group->rank(), ddp.module().p.grad().template to_vector<double>());
  });
  EXPECT_EQ(values[0], Values(4, 0.25));
  EXPECT_EQ(values[1], Values(4, 0.25));
}

TEST_P(DdpTest, Row3CountsAParameterThatIsUsedTwiceTwice) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    (sum(ddp(x)) + sum(linear(x, ddp.module().weight))).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{3}));
  EXPECT_EQ(got[1], (Values{3}));
}

TEST_P(DdpTest, Row4DoesNotOverflowHalfPrecisionWhileSumming) {
  PerRank values(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    auto layer = std::make_shared<nn::Linear>(1, 1, nn::LinearOptions{.bias = false, .dtype = f16});
    DDP ddp(layer, group, options());
    sum(ddp(Tensor::full({1, 1}, 32768, {.dtype = f16}))).backward();
    values.push(group->rank(), grad_of(layer->weight));
  });
  EXPECT_EQ(values[0], (Values{32768}));
  EXPECT_EQ(values[1], (Values{32768}));
}

TEST_P(DdpTest, Row5And6NoSyncLeavesGradientsLocalAndTheNextStepReducesTheSum) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    {
      const NoSync guard = ddp.no_sync();
      sum(ddp(x)).backward();
    }
    push(grad_of(ddp.module().weight));
    sum(ddp(x * 10.0)).backward();
    push(grad_of(ddp.module().weight));
    sum(ddp(x)).backward();  // without clearing
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1, 16.5, 18}));
  EXPECT_EQ(got[1], (Values{2, 16.5, 18}));
}

TEST_P(DdpTest, Row7And8TheForwardDecidesWhetherItsBackwardSynchronises) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    Tensor inside;
    {
      const NoSync guard = ddp.no_sync();
      inside = ddp(x);
    }
    sum(inside).backward();
    push(grad_of(ddp.module().weight));
    ddp.module().zero_grad();
    const Tensor outside = ddp(x);
    {
      const NoSync guard = ddp.no_sync();
      sum(outside).backward();
    }
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1, 1.5}));
  EXPECT_EQ(got[1], (Values{2, 1.5}));
}

TEST_P(DdpTest, AForwardInBetweenDoesNotDecideForAnother) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    const Tensor outside = ddp(x);
    Tensor inside;
    {
      const NoSync guard = ddp.no_sync();
      inside = ddp(x * 10.0);
    }
    sum(outside).backward();
    push(grad_of(ddp.module().weight));
    ddp(x);
    sum(inside).backward();
    push(grad_of(ddp.module().weight));
    sum(ddp(x)).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1.5, 11.5, 18}));
  EXPECT_EQ(got[1], (Values{1.5, 21.5, 18}));
}

TEST_P(DdpTest, ABackwardThroughLocalAndSynchronisingForwardsSynchronises) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    const Tensor outside = ddp(x);
    const NoSync guard = ddp.no_sync();
    (sum(outside) + sum(ddp(x * 10.0))).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{16.5}));
  EXPECT_EQ(got[1], (Values{16.5}));
}

TEST_P(DdpTest, Row9TwoForwardsBeforeOneBackwardAreSummed) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    const Tensor first = ddp(x);
    (sum(first) + sum(ddp(x * 10.0))).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{16.5}));
  EXPECT_EQ(got[1], (Values{16.5}));
}

// PyTorch reduces the first backward only (11.5 and 21.5); each one is reduced here.
TEST_P(DdpTest, Row10TwoForwardsBeforeTwoBackwardsAreBothReduced) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    const Tensor first = ddp(x);
    const Tensor second = ddp(x * 10.0);
    sum(first).backward();
    push(grad_of(ddp.module().weight));
    sum(second).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1.5, 16.5}));
  EXPECT_EQ(got[1], (Values{1.5, 16.5}));
}

// PyTorch leaves the second gradient local (7 and 13).
TEST_P(DdpTest, Row11ARetainedGraphIsReducedEachTime) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    const Tensor y = ddp(x);
    const Tensor loss = sum(y * y);
    loss.backward({}, /*retain_graph=*/true);
    push(grad_of(ddp.module().weight));
    loss.backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{5, 10}));
  EXPECT_EQ(got[1], (Values{5, 10}));
}

TEST_P(DdpTest, Row79GradOfTheOutputStaysLocalAndTheNextStepIsClean) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    push(grad({sum(ddp(x))}, {ddp.module().weight})[0].item());
    sum(ddp(x)).backward();
    push(grad_of(ddp.module().weight));
  });
  EXPECT_EQ(got[0], (Values{1, 1.5}));
  EXPECT_EQ(got[1], (Values{2, 1.5}));
}

TEST_P(DdpTest, Row47KeepsWorkingHoweverGradientsAreCleared) {
  const PerRank got = run([](auto& ddp, Tensor x, auto push) {
    Tensor& weight = ddp.module().weight;
    const auto step = [&] {
      sum(ddp(x)).backward();
      push(grad_of(weight));
    };
    step();
    Tensor(weight.grad()).zero_();
    step();
    weight.set_grad({});
    step();
    weight.set_grad(Tensor::zeros({1, 1}));  // the user's own tensor
    step();
    Tensor(weight.grad()).zero_();
    step();
  });
  EXPECT_EQ(got[0], Values(5, 1.5));
  EXPECT_EQ(got[1], Values(5, 1.5));
}

TEST(Ddp, Row47GradientsAreViewsOfTheirBucketFromTheFirstStepOn) {
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = std::make_shared<nn::Sequential>(nn::Linear(3, 5), nn::Linear(5, 2));
    DDP ddp(net, group, {.gradient_as_bucket_view = true});
    const Tensor x = Tensor::ones({4, 3});
    const BackwardStats stats = backward_with_stats({sum(ddp(x))});
    EXPECT_EQ(stats.direct_writes, 4);
    EXPECT_EQ(stats.temporaries, 0);
    const auto parameters = ddp.parameters();
    for (const Tensor& parameter : parameters) {
      EXPECT_EQ(&parameter.grad().storage(), &parameters.front().grad().storage());
      EXPECT_EQ(parameter.grad().storage_offset() % 16, 0);
    }
  });
}

TEST(Ddp, Row54BucketsAreReducedInOrderWithTheirSizes) {
  comm::LocalWorld(2).run([&](const Group& group) {
    const nn::LinearOptions plain{.bias = false};
    auto net = std::make_shared<nn::Sequential>(
        nn::Linear(512, 512, plain), nn::Linear(512, 512, plain), nn::Linear(512, 512, plain));
    DDP ddp(net, group, {.bucket_cap_mb = 1, .gradient_as_bucket_view = true});
    for (int iteration = 0; iteration < 3; ++iteration) {
      ddp.module().zero_grad();
      sum(ddp(Tensor::ones({1, 512}))).backward();
      const OverlapReport& report = ddp.overlap_report();
      ASSERT_EQ(report.buckets.size(), 3u);
      for (const OverlapReport::Bucket& bucket : report.buckets) {
        EXPECT_EQ(bucket.bytes, 1 << 20);
        EXPECT_LE(bucket.ready_ms, bucket.start_ms);
        EXPECT_LE(bucket.start_ms, bucket.end_ms);
        EXPECT_NEAR(bucket.hidden_ms + bucket.exposed_ms, bucket.end_ms - bucket.start_ms, 1e-9);
      }
    }
    const DDPPlan plan = ddp.plan();
    ASSERT_EQ(plan.buckets.size(), 3u);
    EXPECT_EQ(plan.buckets[0].parameters, (std::vector<std::string>{"2.weight"}));
    EXPECT_EQ(plan.exchanged_bytes, (3 << 20) + 64) << "the step's status has 64 bytes";
    EXPECT_EQ(ddp.rebuilds(), 1);
  });
}

// A model whose gradients arrive in another order than reverse registration.
struct Crossed : nn::ModuleOf<Crossed> {
  nn::Child<nn::Linear> late = make_module<nn::Linear>("late", 64, 64);
  nn::Child<nn::Linear> early = make_module<nn::Linear>("early", 64, 64);
  Tensor forward(const Tensor& x) { return late(early(x)); }
};

TEST(Ddp, Row55BucketsAreRebuiltOnceByOrderOfArrivalAndLiveGradientsMove) {
  for (const bool views : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      manual_seed(5);
      DDP ddp(std::make_shared<Crossed>(), group,
              {.bucket_cap_mb = 0.02, .gradient_as_bucket_view = views});
      EXPECT_EQ(ddp.plan().buckets[0].parameters.front(), "early.bias");
      const Tensor x = Tensor::full({2, 64}, group->rank() + 1);
      sum(ddp(x)).backward();
      const auto once = ddp.module().late->weight.grad().template to_vector<float>();
      EXPECT_EQ(ddp.rebuilds(), 0);
      sum(ddp(x)).backward();  // adds to gradients that had to move
      EXPECT_EQ(ddp.rebuilds(), 1);
      EXPECT_EQ(ddp.plan().buckets[0].parameters.front().substr(0, 4), "late");
      const auto twice = ddp.module().late->weight.grad().template to_vector<float>();
      for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
      sum(ddp(x)).backward();
      EXPECT_EQ(ddp.rebuilds(), 1);
    });
  }
}

TEST(Ddp, Row53And56MixedDtypesGetBucketsOfTheirOwn) {
  comm::LocalWorld(2).run([&](const Group& group) {
    struct Mixed : nn::ModuleOf<Mixed> {
      nn::Child<nn::Linear> a =
          make_module<nn::Linear>("a", 1, 1, nn::LinearOptions{.bias = false, .dtype = f64});
      nn::Child<nn::Linear> b =
          make_module<nn::Linear>("b", 1, 1, nn::LinearOptions{.bias = false});
      Tensor forward(const Tensor& x) { return b(x) + a(x.to(f64)).to(f32); }
    };
    auto net = std::make_shared<Mixed>();
    DDP ddp(net, group, {.gradient_as_bucket_view = true});
    EXPECT_EQ(ddp.plan().buckets.size(), 2u);
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(net->a->weight), 1.5);
    EXPECT_EQ(grad_of(net->b->weight), 1.5);
  });
}

TEST(Ddp, Row59And60TakesParametersWithoutElementsAndBfloat16) {
  comm::LocalWorld(2).run([&](const Group& group) {
    struct Odd : nn::ModuleOf<Odd> {
      Tensor none = register_parameter("none", Tensor::zeros({0, 3}));
      Tensor low = register_parameter("low", Tensor::ones({3}, {.dtype = bf16}));
      Tensor forward(double x) { return sum(none) + sum(low).to(f32) * x; }
    };
    auto net = std::make_shared<Odd>();
    DDP ddp(net, group, {.gradient_as_bucket_view = true});
    ddp(group->rank() + 1.0).backward();
    EXPECT_EQ(net->low.grad().to_vector<double>(), Values(3, 1.5));
  });
}

TEST(Ddp, GivesAllRanksTheFirstOnesParametersAndBuffers) {
  comm::LocalWorld(3).run([&](const Group& group) {
    struct Stateful : nn::ModuleOf<Stateful> {
      Tensor w = register_parameter("w", Tensor::zeros({5}));
      Tensor count = register_buffer("count", Tensor::zeros({}, {.dtype = i64}));
      Tensor forward(const Tensor& x) { return sum(w * x); }
    };
    auto net = std::make_shared<Stateful>();
    {
      const NoGrad no_grad;
      net->w.fill_(group->rank() + 7);
      net->count.fill_(group->rank() + 3);
    }
    const DDP ddp(net, group);
    EXPECT_EQ(net->w.to_vector<double>(), Values(5, 7));
    EXPECT_EQ(net->count.item<std::int64_t>(), 3);
  });
}

struct WithBuffer : nn::ModuleOf<WithBuffer> {
  Tensor w = register_parameter("w", Tensor::ones({1}));
  Tensor b = register_buffer("b", Tensor::zeros({1}));
  Tensor forward(const Tensor& x) { return sum(w * x + b); }
};

// Our rule: rank 0's buffers reach the others before every forward that will synchronise.
TEST(Ddp, Row68And71BuffersFollowRankZeroInSynchronisingTrainingForwardsOnly) {
  PerRank seen(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = std::make_shared<WithBuffer>();
    DDP ddp(net, group);
    const Tensor x = Tensor::ones({1});
    const auto forward = [&] {
      net->b.fill_(group->rank() + 1);
      ddp(x);
      seen.push(group->rank(), net->b.item());
    };
    forward();
    {
      const NoSync guard = ddp.no_sync();
      forward();
    }
    ddp.eval();
    if (group->rank() == 0) forward();  // alone: no collective in evaluation
    if (group->rank() == 1) forward();
    ddp.train();
    forward();
  });
  EXPECT_EQ(seen[0], (Values{1, 1, 1, 1}));
  EXPECT_EQ(seen[1], (Values{1, 2, 2, 1}));
}

TEST(Ddp, Row70TheBroadcastOfBuffersIsInvisibleToAutograd) {
  comm::LocalWorld(2).run([&](const Group& group) {
    struct Scaled : nn::ModuleOf<Scaled> {
      Tensor w = register_parameter("w", Tensor::ones({1}));
      Tensor b = register_buffer("b", Tensor::full({1}, 3));
      Tensor forward(const Tensor& x) { return sum(w * b * x); }  // saves b
    };
    auto net = std::make_shared<Scaled>();
    DDP ddp(net, group);
    const Tensor x = Tensor::ones({1});
    const Tensor first = ddp(x);
    (first + ddp(x)).backward();
    EXPECT_EQ(grad_of(net->w), 6);
  });
}

TEST_P(DdpTest, Row3AWeightSharedByTwoLayersHasTheirSumOverManyBuckets) {
  comm::LocalWorld(2).run([&](const Group& group) {
    struct Shared : nn::ModuleOf<Shared> {
      Tensor w = register_parameter("w", Tensor::ones({256, 256}));
      Tensor u = register_parameter("u", Tensor::ones({256, 256}));
      Tensor forward(double x) { return sum(w * x) + sum(w * x) + sum(u * x); }
    };
    DDPOptions options = this->options();
    options.bucket_cap_mb = 0.25;
    DDP ddp(std::make_shared<Shared>(), group, options);
    for (const bool to_none : {true, false, true}) {
      ddp(group->rank() + 1.0).backward();
      EXPECT_EQ(ddp.module().w.grad().template to_vector<double>(), Values(256 * 256, 3));
      EXPECT_EQ(ddp.module().u.grad().template to_vector<double>(), Values(256 * 256, 1.5));
      ddp.module().zero_grad(to_none);
    }
  });
}

// Row 69 reassigns the buffer; here a buffer is always written in place.
TEST(Ddp, Row69And89BuffersAreEqualAfterForwardUnlessToldNotTo) {
  for (const bool broadcast : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<WithBuffer>(), group,
              {.broadcast_buffers = broadcast, .init_sync = false});
      for (int step = 1; step <= 3; ++step) {
        const int mine = 10 * group->rank() + step;
        ddp.module().b.fill_(mine);
        ddp(Tensor::ones({1})).backward();
        EXPECT_EQ(ddp.module().b.item(), broadcast ? step : mine);
      }
    });
  }
}

TEST(Ddp, AWorldOfOneAddsNothing) {
  comm::LocalWorld(1).run([&](const Group& group) {
    auto layer = one_weight();
    DDP ddp(layer, group);
    sum(ddp(number(4))).backward();
    EXPECT_EQ(grad_of(layer->weight), 4);
    EXPECT_FALSE(grad_destination(layer->weight).defined());
    EXPECT_EQ(ddp.plan().all_reduces, 0);
  });
}

TEST(Ddp, MemoryOfGradientsStaysWithTheirParametersBytes) {
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = std::make_shared<nn::Sequential>(nn::Linear(300, 300), nn::Linear(300, 300));
    DDP ddp(net, group, {.gradient_as_bucket_view = true});
    sum(ddp(Tensor::ones({8, 300}))).backward();
    const auto live = memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)];
    EXPECT_LE(live, ddp.plan().parameter_bytes + 4 * 64);
    EXPECT_EQ(live, ddp.plan().bucket_bytes);
  });
}

TEST(Ddp, LeavesGradientsUsableWhenItGoes) {
  comm::LocalWorld(2).run([&](const Group& group) {
    auto layer = one_weight();
    {
      DDP ddp(layer, group, {.gradient_as_bucket_view = true});
      sum(ddp(number(group->rank() + 1))).backward();
    }
    EXPECT_EQ(grad_of(layer->weight), 1.5);
    sum((*layer)(number(1))).backward();
    EXPECT_EQ(grad_of(layer->weight), 2.5);
  });
}

}  // namespace
}  // namespace cohort
