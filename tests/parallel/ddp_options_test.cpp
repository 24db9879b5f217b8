// Reduce policies, accumulation, mixed precision, ignored parameters, layouts, logging. Numbers in
// names are rows of docs/conformance.md. Two ranks; rank r gives x = r + 1.

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/nn/norm.h"
#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

using Values = std::vector<double>;

TEST(DdpPolicy, SumAddsTheRanksGradients) {
  for (const bool views : {false, true}) {
    comm::LocalWorld(3).run([&](const Group& group) {
      DDP ddp(one_weight(), group,
              {.gradient_as_bucket_view = views, .reduce_policy = ReducePolicy::sum});
      sum(ddp(number(group->rank() + 1))).backward();
      EXPECT_EQ(grad_of(ddp.module().weight), 6);
    });
  }
}

// Ranks hold 1, 2 and 5 tokens; the loss is a sum. Without a count the mean over ranks is wrong.
TEST(DdpPolicy, CountGivesTheMeanOverAllTokens) {
  for (const int world : {1, 2, 3}) {
    comm::LocalWorld(world).run([&](const Group& group) {
      const std::vector<std::int64_t> tokens{1, 2, 5};
      const std::int64_t mine = tokens[static_cast<std::size_t>(group->rank())];
      DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
      for (int step = 0; step < 2; ++step) {
        ddp.module().zero_grad();
        ddp.count(mine);
        sum(ddp(Tensor::full({mine, 1}, 8))).backward();
        EXPECT_EQ(grad_of(ddp.module().weight), 8) << "every token has gradient 8";
      }
    });
  }
}

TEST(DdpPolicy, CountsOfAnAccumulationAddUp) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
    ddp.accumulate(3, [&](int micro) {
      const std::int64_t tokens = 1 + micro + group->rank();
      ddp.count(tokens);
      return sum(ddp(Tensor::full({tokens, 1}, 4)));
    });
    EXPECT_EQ(grad_of(ddp.module().weight), 4);
  });
}

TEST(DdpPolicy, AForgottenCountIsAnErrorOnAllRanksAndTheNextStepIsClean) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
    if (group->rank() == 0) ddp.count(1);
    const std::string message = message_of<Error>([&] { sum(ddp(number(1))).backward(); });
    EXPECT_NE(message.find("count() was not called"), std::string::npos) << message;
    ++raised;
    ddp.module().zero_grad();
    ddp.count(2);
    sum(ddp(number(2))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 1);
    EXPECT_THROW(ddp.count(-1), InvalidArgument);
    DDP mean(one_weight(), group);
    EXPECT_THROW(mean.count(1), InvalidArgument);
  });
  EXPECT_EQ(raised, 2);
}

TEST(DdpPolicy, CountsThatAddUpToZeroAreAnErrorOnAllRanks) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
    ddp.count(0);
    const std::string message = message_of<AutogradError>([&] { sum(ddp(number(1))).backward(); });
    EXPECT_NE(message.find("add up to zero"), std::string::npos) << message;
    ++raised;
    ddp.module().zero_grad();
    ddp.count(group->rank());
    sum(ddp(number(1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 2);
  });
  EXPECT_EQ(raised, 2);
}

TEST(DdpAccumulate, TheLastMicroBatchReducesTheSum) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    group->reset_stats();
    ddp.accumulate(3,
                   [&](int micro) { return sum(ddp(number((group->rank() + 1) * (micro + 1)))); });
    EXPECT_EQ(grad_of(ddp.module().weight), 9);  // 6 and 12
    EXPECT_EQ(group->stats().of(comm::Operation::all_reduce).count, 1);
    EXPECT_THROW(ddp.accumulate(0, [](int) { return Tensor(); }), InvalidArgument);
  });
}

TEST(DdpPrecision, ForwardComputesInParamDtypeAndGradientsAreInTheParametersOwn) {
  struct Probe : nn::ModuleOf<Probe> {
    nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 4, 3);
    Tensor seen_stat = register_buffer("stat", Tensor::ones({2}));
    Tensor seen_count = register_buffer("count", Tensor::zeros({1}, {.dtype = i64}));
    DType input = f32, weight = f32;
    Tensor forward(const Tensor& x, const Tensor& index) {
      EXPECT_EQ(index.dtype(), i64);
      input = x.dtype();
      weight = fc->weight.dtype();
      return fc(x);
    }
  };
  for (const bool views : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Probe>(), group,
              {.gradient_as_bucket_view = views,
               .mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32, .buffer_dtype = f16}});
      Probe& net = ddp.module();
      EXPECT_EQ(net.seen_stat.dtype(), f16);
      EXPECT_EQ(net.seen_count.dtype(), i64);
      for (int step = 0; step < 2; ++step) {
        const Tensor y =
            ddp(Tensor::full({2, 4}, group->rank() + 1), Tensor::zeros({1}, {.dtype = i64}));
        EXPECT_EQ(net.input, bf16);
        EXPECT_EQ(net.weight, bf16);
        EXPECT_EQ(y.dtype(), bf16);
        EXPECT_EQ(net.fc->weight.dtype(), f32) << "back after forward";
        net.zero_grad();
        sum(y.to(f32)).backward();
        EXPECT_EQ(net.fc->weight.grad().dtype(), f32);
        EXPECT_EQ(net.fc->weight.grad().template to_vector<double>(), Values(12, 3));
      }
      optim::SGD sgd(ddp.parameters(), {.lr = 1e-3});
      sgd.step();  // 3e-3 is below bf16's resolution at 1: only an f32 master moves
    });
  }
}

TEST(DdpPrecision, GradientsTravelInReduceDtype) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group,
            {.gradient_as_bucket_view = true, .mixed_precision = {.reduce_dtype = bf16}});
    EXPECT_EQ(ddp.plan().buckets[0].dtype, bf16);
    sum(ddp(number(1.00390625))).backward();  // 1 + 2^-8 goes to 1 in bf16
    EXPECT_EQ(grad_of(ddp.module().weight), 1);
    EXPECT_EQ(ddp.module().weight.grad().dtype(), f32);
  });
}

TEST(DdpPrecision, AnExceptionInForwardLeavesTheParametersTheirOwn) {
  struct Throws : nn::ModuleOf<Throws> {
    nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 1, 1);
    Tensor forward(const Tensor& x, bool bad) {
      if (bad) throw std::range_error("forward");
      return fc(x);
    }
  };
  for (const int world : {1, 2}) {
    comm::LocalWorld(world).run([](const Group& group) {
      DDP ddp(std::make_shared<Throws>(), group, {.mixed_precision = {.param_dtype = bf16}});
      EXPECT_THROW(ddp(number(1), true), std::range_error);
      EXPECT_EQ(ddp.module().fc->weight.dtype(), f32);
      EXPECT_TRUE(ddp.module().fc->weight.is_leaf());
      sum(ddp(number(2), false).to(f32)).backward();
      EXPECT_EQ(grad_of(ddp.module().fc->weight), 2);
    });
  }
}

TEST(DdpPrecision, FrozenParametersAreComputedWithInTheSameDtype) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<nn::Sequential>(nn::Linear(2, 2), nn::Linear(2, 2));
    (*net)[1].requires_grad_(false);
    DDP ddp(net, group, {.mixed_precision = {.param_dtype = bf16}});
    sum(ddp(Tensor::ones({1, 2})).to(f32)).backward();
    const std::vector<Tensor> parameters = ddp.parameters();
    EXPECT_EQ(parameters[2].dtype(), f32);
    // The gradient of layer 0 goes through layer 1's weight, as it was in forward.
    const std::vector<double> weight = parameters[2].to(bf16).template to_vector<double>();
    const std::vector<double> got = parameters[1].grad().template to_vector<double>();
    EXPECT_NEAR(got[0], weight[0] + weight[2], 1e-2);
    EXPECT_NEAR(got[1], weight[1] + weight[3], 1e-2);
  });
}

TEST(DdpPrecision, TwoForwardsBeforeOneBackward) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.mixed_precision = {.param_dtype = bf16}});
    const Tensor first = ddp(number(group->rank() + 1));
    (sum(first) + sum(ddp(number(10.0 * (group->rank() + 1))))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 16.5);
  });
}

TEST(DdpPrecision, OnlyFloatingDtypes) {
  comm::LocalWorld(1).run([](const Group& group) {
    EXPECT_THROW(DDP(one_weight(), group, {.mixed_precision = {.param_dtype = i32}}), DTypeError);
    EXPECT_THROW(DDP(one_weight(), group, {.mixed_precision = {.reduce_dtype = u8}}), DTypeError);
    EXPECT_THROW(DDP(one_weight(), group, {.mixed_precision = {.buffer_dtype = i64}}), DTypeError);
  });
}

// PyTorch cannot ignore a parameter of the root (row 65).
TEST(DdpIgnored, Row64And65ParametersAndBuffersByNameStayLocal) {
  struct Net : nn::ModuleOf<Net> {
    Tensor p = register_parameter("p", Tensor::ones({1}));
    nn::Child<nn::Linear> a = register_module("a", one_weight());
    nn::Child<nn::Linear> b = register_module("b", one_weight());
    Tensor q = register_buffer("q", Tensor::zeros({1}));
    Tensor forward(const Tensor& x) { return a(x) + b(x) + p * x; }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<Net>();
    {
      const NoGrad no_grad;
      net->b->weight.fill_(group->rank() + 5);
      net->q.fill_(group->rank() + 5);
    }
    DDP ddp(net, group, {.ignored = {"b.weight", "q", "p"}});
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(net->a->weight), 1.5);
    EXPECT_EQ(grad_of(net->b->weight), group->rank() + 1);
    EXPECT_EQ(grad_of(net->p), group->rank() + 1);
    EXPECT_EQ(net->b->weight.item(), group->rank() + 5);
    EXPECT_EQ(net->q.item(), group->rank() + 5);
    EXPECT_THROW(DDP(one_weight(), group, {.ignored = {"wieght"}}), InvalidArgument);
  });
}

TEST(DdpLayout, Row58AGradientHasItsParametersStrides) {
  struct Permuted : nn::ModuleOf<Permuted> {
    Tensor w = register_parameter("w", Tensor::ones({3, 2}).transpose(0, 1).detach());
    Tensor forward(const Tensor& x) { return sum(w * x); }
  };
  for (const bool views : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Permuted>(), group, {.gradient_as_bucket_view = views});
      const Tensor& w = ddp.module().w;
      ASSERT_FALSE(w.is_contiguous());
      for (int step = 0; step < 2; ++step) {
        ddp.module().zero_grad();
        ddp(Tensor::full({2, 3}, group->rank() + 1)).backward();
        EXPECT_EQ(w.grad().template to_vector<double>(), Values(6, 1.5));
        EXPECT_EQ(w.grad().strides(), w.strides());
      }
    });
  }
}

TEST(DdpLogging, Row82CountsStepsBucketsAndTimes) {
  comm::LocalWorld(2).run([](const Group& group) {
    const nn::LinearOptions no_bias{.bias = false};
    DDP ddp(
        std::make_shared<nn::Sequential>(nn::Linear(64, 64, no_bias), nn::Linear(64, 64, no_bias)),
        group, {.bucket_cap_mb = 0.015});
    EXPECT_EQ(ddp.logging_data().iterations, 0);
    for (int i = 0; i < 20; ++i) sum(ddp(Tensor::ones({8, 64}))).backward();
    const DDPLoggingData data = ddp.logging_data();
    EXPECT_EQ(data.iterations, 20);
    EXPECT_EQ(data.synchronised_steps, 20);
    EXPECT_EQ(data.failed_steps, 0);
    EXPECT_EQ(data.bucket_bytes, (std::vector<std::int64_t>{64 * 64 * 4, 64 * 64 * 4}));
    EXPECT_GT(data.compute_ms, 0);
    EXPECT_GT(data.communication_ms, 0);
    EXPECT_LE(data.overlap_ms, data.communication_ms);
    EXPECT_EQ(data.backend, "shm");
  });
}

TEST(DdpState, Row66FreezingAndUnfreezingAfterwardsIsNamedInTheNextForward) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<nn::Sequential>(nn::Linear(2, 2), nn::Linear(2, 2));
    (*net)[0].requires_grad_(false);
    DDP ddp(net, group);
    (*net)[0].requires_grad_(true);
    std::string message = message_of<AutogradError>([&] { ddp(Tensor::ones({1, 2})); });
    EXPECT_NE(message.find("'0.weight'"), std::string::npos) << message;
    (*net)[0].requires_grad_(false);
    (*net)[1].requires_grad_(false);
    message = message_of<AutogradError>([&] { ddp(Tensor::ones({1, 2})); });
    EXPECT_NE(message.find("'1.weight'"), std::string::npos) << message;
    EXPECT_NE(message.find("frozen"), std::string::npos) << message;
  });
}

TEST(DdpState, FreezingAndUnfreezingInBetweenIsNamedToo) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.static_graph = true});
    ddp.module().weight.set_requires_grad(false);
    ddp.module().weight.set_requires_grad(true);
    const std::string message = message_of<AutogradError>([&] { ddp(number(1)); });
    EXPECT_NE(message.find("'weight' has been frozen"), std::string::npos) << message;
  });
}

TEST(DdpState, AParameterThatForwardReturnsIsReduced) {
  struct Bare : nn::ModuleOf<Bare> {
    Tensor w = register_parameter("w", Tensor::ones({1}));
    Tensor forward() { return w; }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(std::make_shared<Bare>(), group);
    (sum(ddp()) * (group->rank() + 1.0)).backward();
    EXPECT_EQ(grad_of(ddp.module().w), 1.5);
  });
}

TEST(DdpState, HooksThatRemoveThemselvesLeaveDdpsAlone) {
  struct Hooked : nn::ModuleOf<Hooked> {
    nn::Child<nn::Linear> a = register_module("a", one_weight());
    HookHandle once;
    Tensor forward(const Tensor& x) {
      const Tensor y = a(x);
      once = register_hook(y, [this](const Tensor&) {
        once.remove();
        return Tensor();
      });
      return y;
    }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<Hooked>();
    HookHandle leaf_once;
    leaf_once = register_post_accumulate_grad_hook(net->a->weight,
                                                   [&](const Tensor&) { leaf_once.remove(); });
    DDP ddp(net, group);
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(net->a->weight), 1.5);
  });
}

TEST(DdpState, AnExceptionWithoutATextFailsAllRanksToo) {
  struct Silent : std::exception {
    const char* what() const noexcept override { return ""; }
  };
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    const Tensor y = ddp(number(1));
    if (group->rank() == 1) register_hook(y, [](const Tensor&) -> Tensor { throw Silent(); });
    try {
      sum(y).backward();
    } catch (const std::exception&) {
      ++raised;
    }
    ddp.module().zero_grad();
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
  });
  EXPECT_EQ(raised, 2);
}

TEST(DdpState, AFailedLocalMicroBatchLeavesNothingBehind) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
    {
      const NoSync guard = ddp.no_sync();
      ddp.count(1);
      const Tensor y = ddp(number(1));
      register_hook(y, [](const Tensor&) -> Tensor { throw InvalidArgument("mine"); });
      EXPECT_THROW(sum(y).backward(), InvalidArgument);
    }
    ddp.module().zero_grad();
    ddp.count(7);
    EXPECT_THROW(ddp.count(std::int64_t{1} << 40), InvalidArgument);
    ddp.abandon_accumulation();  // as after an exception in the loss
    ddp.count(1);
    sum(ddp(number(1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 1);
  });
}

TEST(DdpState, ConvertingAWrappedModelIsRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    EXPECT_THROW(ddp.module().to(bf16), InvalidArgument);
  });
}

TEST(DdpState, TooLittleMemoryAtConstructionLeavesTheModuleFreeForAnotherTry) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto layer = std::make_shared<nn::Linear>(100, 100);
    const auto& allocator = Context::current().runtime()->allocator(Device::cpu());
    allocator->set_limit(allocator->stats().live_total + 1000);
    EXPECT_THROW(DDP(layer, group), OutOfMemory);
    allocator->set_limit(0);
    DDP ddp(layer, group);
    sum(ddp(Tensor::ones({1, 100}))).backward();
  });
}

TEST(DdpState, Row67AReplacedParameterIsNamedInThatBackward) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    ddp.module().weight = Tensor::ones({1, 1}, {.requires_grad = true});
    const std::string message = message_of<Error>([&] { sum(ddp(number(1))).backward(); });
    EXPECT_NE(message.find("'weight'"), std::string::npos) << message;
    EXPECT_NE(message.find("other tensors"), std::string::npos) << message;
    ++raised;
  });
  EXPECT_EQ(raised, 2);
}

TEST(DdpState, ASecondWrapperOfOneModuleIsRefusedWhileTheFirstLives) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto layer = one_weight();
    {
      DDP first(layer, group);
      const std::string message = message_of<AutogradError>([&] { DDP second(layer, group); });
      EXPECT_NE(message.find("is managed by DDP already"), std::string::npos) << message;
      sum(first(number(group->rank() + 1))).backward();
      EXPECT_EQ(grad_of(layer->weight), 1.5);
    }
    layer->zero_grad();
    DDP third(layer, group);
    sum(third(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(layer->weight), 1.5);
  });
}

TEST(DdpState, ARankThatIsNoMemberOfTheGroupHearsSo) {
  comm::LocalWorld(2).run([](const Group& group) {
    const Group sub = group->split(group->rank() == 0 ? 0 : -1);
    if (group->rank() == 0) return;
    const std::string message = message_of<InvalidArgument>([&] { DDP(one_weight(), sub); });
    EXPECT_NE(message.find("no member"), std::string::npos) << message;
  });
}

TEST(DdpState, CanBeDestroyedInsideABackward) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto layer = one_weight();
    auto ddp = std::make_unique<DDP<nn::Linear>>(layer, group);
    Tensor x = number(1);
    x.set_requires_grad(true);
    // Runs when the weight's bucket has gone out.
    register_post_accumulate_grad_hook(x, [&](const Tensor&) { ddp.reset(); });
    sum((*ddp)(x) * (group->rank() + 1.0)).backward();
    EXPECT_EQ(ddp, nullptr);
    EXPECT_EQ(grad_of(layer->weight), 1.5) << "the step that was under way is finished";
    EXPECT_EQ(grad_manager(layer->weight), "");
  });
}

TEST(DdpState, Row80AnExceptionOnAllRanksLeavesACleanNextStep) {
  for (const bool views : {false, true}) {
    std::atomic<int> raised{0};
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(one_weight(), group, {.gradient_as_bucket_view = views});
      const Tensor y = ddp(number(1));
      register_hook(y, [](const Tensor&) -> Tensor { throw InvalidArgument("mine"); });
      EXPECT_THROW(sum(y).backward(), InvalidArgument);
      ++raised;
      for (int step = 0; step < 2; ++step) {
        ddp.module().zero_grad();
        sum(ddp(number(group->rank() + 1))).backward();
        EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
      }
      EXPECT_EQ(ddp.logging_data().failed_steps, 1);
      EXPECT_NE(ddp.logging_data().last_error.find("mine"), std::string::npos);
    });
    EXPECT_EQ(raised, 2);
  }
}

TEST(DdpState, Row78CreateGraphIsAClearErrorAndTheNextStepIsClean) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    EXPECT_THROW(backward({sum(ddp(number(1)))}, {}, {.create_graph = true}), NotSupported);
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
  });
}

TEST(DdpState, Row70TwoForwardsThroughBatchNormBeforeOneBackward) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto make = [] {
      manual_seed(8);
      return std::make_shared<nn::Sequential>(nn::Linear(4, 4), nn::BatchNorm1d(4));
    };
    Generator generator(5);  // the same inputs on both ranks: their mean is the gradient of one
    Tensor x = Tensor::empty({2, 6, 4});
    normal_(x, 0, 1, generator);
    const auto gradient_of = [&](auto& model) {
      const Tensor first = tanh(model(reshape(narrow(x, 0, 0, 1), {6, 4})));
      (sum(first) + sum(tanh(model(reshape(narrow(x, 0, 1, 1), {6, 4}))))).backward();
      return model.parameters()[0].grad().template to_vector<float>();
    };
    DDP ddp(make(), group);
    const auto bare = make();
    EXPECT_EQ(gradient_of(ddp), gradient_of(*bare));
  });
}

// Trains from `begin` to `end`, from the state given and into it.
struct Snapshot {
  std::vector<Tensor> parameters;
  std::vector<std::vector<optim::NamedState>> states;
};

template <typename Model>
Snapshot train_from(Model& model, const Group& group, const Snapshot* from, int begin, int end) {
  const std::vector<Tensor> parameters = model.parameters();
  optim::SGD sgd(parameters, {.lr = 0.1, .momentum = 0.9});
  for (std::size_t i = 0; from != nullptr && i < parameters.size(); ++i) {
    const NoGrad no_grad;
    Tensor(parameters[i]).copy_(from->parameters[i]);
    sgd.load_state(parameters[i], begin, from->states[i]);
  }
  for (int step = begin; step < end; ++step) {
    sgd.zero_grad();
    sum(tanh(model(Tensor::full({2, 3}, 0.1 * (step + 1) * (group->rank() + 1))))).backward();
    sgd.step();
  }
  Snapshot out;
  for (const Tensor& parameter : parameters) {
    out.parameters.push_back(parameter.detach().clone());
    out.states.emplace_back();
    for (const optim::NamedState& state : sgd.state(parameter)) {
      out.states.back().push_back({state.name, state.tensor.clone()});
    }
  }
  return out;
}

TEST(DdpState, Row84AReloadedStateGoesOnAsTheUninterruptedRun) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto fresh = [] {
      manual_seed(3);
      return std::make_shared<nn::Linear>(3, 4);
    };
    DDP whole(fresh(), group);
    const Snapshot expected = train_from(whole, group, nullptr, 0, 6);
    DDP first(fresh(), group);
    const Snapshot middle = train_from(first, group, nullptr, 0, 3);
    manual_seed(99);  // other initial values, which the state replaces
    DDP second(std::make_shared<nn::Linear>(3, 4), group);
    const Snapshot got = train_from(second, group, &middle, 3, 6);
    for (std::size_t i = 0; i < got.parameters.size(); ++i) {
      EXPECT_EQ(got.parameters[i].to_vector<float>(), expected.parameters[i].to_vector<float>());
    }
    // The bare model takes the state under the same names, and computes the same.
    nn::Linear bare(3, 4);
    const NoGrad no_grad;
    bare.weight.copy_(got.parameters[0]);
    bare.bias.copy_(got.parameters[1]);
    EXPECT_EQ(bare.named_parameters()[0].name, second.module().named_parameters()[0].name);
    const Tensor x = Tensor::ones({1, 3});
    EXPECT_EQ(bare(x).to_vector<float>(), second.module()(x).to_vector<float>());
  });
}

// Row 81: many steps on a compute stream of its own; nothing is ever read too early.
TEST(DdpState, Row81AThousandStepsOnAQueuedStream) {
  comm::LocalWorld(2, {.runtime = {.schedule_seed = 7}}).run([](const Group& group) {
    DDP ddp(one_weight(), group, {.gradient_as_bucket_view = true});
    for (int step = 0; step < 1000; ++step) {
      ddp.module().zero_grad();
      sum(ddp(number(group->rank() + step))).backward();
      ASSERT_EQ(grad_of(ddp.module().weight), 0.5 + step);
    }
  });
}

}  // namespace
}  // namespace cohort
