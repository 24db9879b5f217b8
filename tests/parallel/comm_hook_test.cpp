// Communication hooks. Numbers in names are rows of docs/conformance.md.

#include "cohort/parallel/comm_hook.h"

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/nn/sequential.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

using Values = std::vector<double>;

// y = p + 8 + r, loss its mean: the gradient is 0.25 everywhere.
struct Shift : nn::ModuleOf<Shift> {
  Tensor p = register_parameter("p", Tensor::ones({2, 2}));
  Tensor forward(double shift) { return p + shift; }
};

void expect_gradient(const std::function<CommHook(const Group&)>& make, double expected) {
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(std::make_shared<Shift>(), group);
    ddp.register_comm_hook(make(group), "test");
    mean(ddp(8.0 + group->rank())).backward();
    EXPECT_EQ(ddp.module().p.grad().template to_vector<double>(), Values(4, expected));
  });
}

TEST(CommHook, Row37TheResultReplacesTheGradients) {
  expect_gradient(
      [](const Group&) -> CommHook {
        return [](const GradBucket& bucket) {
          const Tensor ones = Tensor::ones(bucket.buffer.shape());
          return BucketWork::done(ones).then([](Tensor value) { return value + 1.0; });
        };
      },
      2);
}

TEST(CommHook, Row38ContinuationsRunInOrderAfterTheCommunication) {
  expect_gradient(
      [](const Group& group) -> CommHook {
        return [group](const GradBucket& bucket) {
          const Tensor scaled = bucket.buffer / 2.0;
          return BucketWork::after(group->all_reduce(scaled), scaled)
              .then([](Tensor value) { return value * 10.0; })
              .then([](Tensor value) { return value / 2.0; });
        };
      },
      1.25);
}

TEST(CommHook, AContinuationMayCommunicateAgain) {
  expect_gradient(
      [](const Group& group) -> CommHook {
        return [group](const GradBucket& bucket) {
          return BucketWork::after(group->all_reduce(bucket.buffer), bucket.buffer)
              .then([group](Tensor value) {  // 0.5 on both, then 1
                return BucketWork::after(group->all_reduce(value), value);
              });
        };
      },
      1);
}

class BuiltInHooks : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, BuiltInHooks,
                         testing::Combine(testing::Values(0, 1, 2), testing::Bool()));

TEST_P(BuiltInHooks, Row40GiveTheMeanInEveryStep) {
  const auto [which, views] = GetParam();
  comm::LocalWorld(2).run([&, which = which, views = views](const Group& group) {
    DDP ddp(one_weight(), group, {.gradient_as_bucket_view = views});
    const CommHook hooks[] = {comm_hooks::all_reduce(group), comm_hooks::fp16_compress(group),
                              comm_hooks::bf16_compress(group)};
    ddp.register_comm_hook(hooks[which]);
    for (int step = 0; step < 3; ++step) {
      sum(ddp(number(group->rank() + 1))).backward();
      EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
      ddp.module().zero_grad();
    }
  });
}

TEST(CommHook, CompressionRoundsToItsDtype) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    ddp.register_comm_hook(comm_hooks::bf16_compress(group));
    sum(ddp(number(1.00390625))).backward();  // 1 + 2^-8: a tie, which goes to the even 1
    EXPECT_EQ(grad_of(ddp.module().weight), 1);
  });
}

TEST(CommHook, NoopLeavesGradientsLocal) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.gradient_as_bucket_view = true});
    ddp.register_comm_hook(comm_hooks::noop());
    group->reset_stats();
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), group->rank() + 1);
    EXPECT_EQ(group->stats().total().count, 0);
  });
}

// PyTorch: one bucket in the first iteration, three afterwards.
TEST(CommHook, Row54IndicesSizesAndLastAreHonestInEveryIteration) {
  for (const int mode : {0, 1, 2}) {  // plain, with unused parameters, with a static graph
    comm::LocalWorld(2).run([&](const Group& group) {
      const nn::LinearOptions no_bias{.bias = false};
      auto net = std::make_shared<nn::Sequential>(nn::Linear(512, 512, no_bias),
                                                  nn::Linear(512, 512, no_bias),
                                                  nn::Linear(512, 512, no_bias));
      DDP ddp(net, group,
              {.bucket_cap_mb = 1, .find_unused_parameters = mode == 1, .static_graph = mode == 2});
      std::vector<std::tuple<int, bool, std::int64_t>> trace;
      ddp.register_comm_hook([&](const GradBucket& bucket) {
        trace.emplace_back(bucket.index, bucket.is_last,
                           static_cast<std::int64_t>(bucket.buffer.bytes()));
        EXPECT_EQ(bucket.gradients.size(), 1u);
        EXPECT_EQ(bucket.parameters.size(), 1u);
        return comm_hooks::all_reduce(group)(bucket);
      });
      for (int step = 0; step < 3; ++step) {
        trace.clear();
        sum(ddp(Tensor::ones({1, 512}))).backward();
        constexpr std::int64_t kMiB = 1 << 20;
        EXPECT_EQ(trace, (std::vector<std::tuple<int, bool, std::int64_t>>{
                             {0, false, kMiB}, {1, false, kMiB}, {2, true, kMiB}}));
      }
    });
  }
}

TEST(CommHook, UnusedParametersAreFoundUnderAHook) {
  struct Half : nn::ModuleOf<Half> {
    nn::Child<nn::Linear> a = register_module("a", one_weight());
    nn::Child<nn::Linear> b = register_module("b", one_weight());
    nn::Child<nn::Linear> c = register_module("c", one_weight());
    Tensor forward(const Tensor& x, bool first) { return first ? a(x) : b(x); }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(std::make_shared<Half>(), group, {.find_unused_parameters = true});
    ddp.register_comm_hook(comm_hooks::all_reduce(group));
    sum(ddp(number(group->rank() + 1), group->rank() == 0)).backward();
    EXPECT_EQ(grad_of(ddp.module().a->weight), 0.5);
    EXPECT_EQ(grad_of(ddp.module().b->weight), 1);
    EXPECT_FALSE(ddp.module().c->weight.grad().defined());
  });
}

TEST(CommHook, Row41CanBeRegisteredOnce) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    ddp.register_comm_hook(comm_hooks::all_reduce(group), "first");
    const std::string message = message_of<InvalidArgument>(
        [&] { ddp.register_comm_hook(comm_hooks::fp16_compress(group), "second"); });
    EXPECT_NE(message.find("only be called once"), std::string::npos) << message;
    EXPECT_NE(message.find("'first'"), std::string::npos) << message;
    EXPECT_EQ(ddp.logging_data().comm_hook, "first");
  });
}

TEST(CommHook, Row42AnEmptyOneIsRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    EXPECT_THROW(ddp.register_comm_hook({}), InvalidArgument);
    ddp.register_comm_hook(comm_hooks::noop());  // still possible
  });
}

TEST(CommHook, RanksMustRegisterTheSame) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    try {
      ddp.register_comm_hook(comm_hooks::noop(), group->rank() == 0 ? "a" : "b");
    } catch (const MismatchError&) {
      ++raised;
    }
  });
  EXPECT_EQ(raised, 2);
}

TEST(CommHook, ExcludesOtherPoliciesThanTheMean) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::sum});
    const std::string message =
        message_of<InvalidArgument>([&] { ddp.register_comm_hook(comm_hooks::noop()); });
    EXPECT_NE(message.find("reduce_policy = sum"), std::string::npos) << message;
  });
}

// Each returns what is wrong, on rank 1 or on both; every rank's backward must fail and say so.
struct BadHook {
  const char* name;
  CommHook hook;
  const char* text;
};

class BadHooks : public testing::TestWithParam<BadHook> {};
INSTANTIATE_TEST_SUITE_P(
    All, BadHooks,
    testing::Values(
        BadHook{"NoWork", [](const GradBucket&) { return BucketWork(); }, "returned no work"},
        BadHook{"Throws", [](const GradBucket&) -> BucketWork { throw InvalidArgument("no luck"); },
                "no luck"},
        BadHook{"WrongSize", [](const GradBucket&) { return BucketWork::done(Tensor::ones({3})); },
                "must return 16 elements of f32"},
        BadHook{"WrongDtype",
                [](const GradBucket& bucket) { return BucketWork::done(bucket.buffer.to(f64)); },
                "16 of f64"},
        BadHook{"Nothing", [](const GradBucket&) { return BucketWork::done(Tensor()); },
                "returned nothing"}),
    [](const auto& info) { return info.param.name; });

TEST_P(BadHooks, Row42FailTheBackwardOnEveryRankAndShowInTheLoggingData) {
  for (const bool both : {true, false}) {
    std::atomic<int> raised{0};
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(one_weight(), group);
      const bool bad = both || group->rank() == 1;
      ddp.register_comm_hook(bad ? GetParam().hook : comm_hooks::all_reduce(group));
      // A rank whose own hook is right learns of the other's failure at the latest in the next
      // step.
      const std::string message = message_of<Error>([&] {
        sum(ddp(number(1))).backward();
        sum(ddp(number(1))).backward();
      });
      EXPECT_NE(message.find(GetParam().text), std::string::npos) << message;
      EXPECT_NE(ddp.logging_data().last_error.find(GetParam().text), std::string::npos);
      ++raised;
    });
    EXPECT_EQ(raised, 2);
  }
}

}  // namespace
}  // namespace cohort
