// Frozen and trained parameters under FSDP, and those that change between steps. Numbers in names
// are rows of the FSDP list in docs/conformance.md.

#include <gtest/gtest.h>

#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using comm::Operation;

Tensor some_input(int rank, int micro) {
  Generator generator(static_cast<std::uint64_t>(10 * rank + micro + 1));
  Tensor x = Tensor::empty({3, 6});
  normal_(x, 0, 1, generator);
  return x;
}

TEST(FsdpTrainability, Row19TrainingBiasesReducesBiasesOnly) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = small_model();
    std::int64_t biases = 0;
    for (const auto& [name, tensor] : net->named_parameters()) {
      const bool bias = name.ends_with("bias");
      Tensor(tensor).set_requires_grad(bias);
      if (bias) biases += (tensor.numel() + 31) / 32 * 32;  // 64 bytes on each of two ranks
    }
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    group->reset_stats();
    loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
    EXPECT_EQ(group->stats().of(Operation::reduce_scatter).logical_bytes, 4 * biases);
    EXPECT_EQ(fsdp.plan().gradient_bytes, 4 * biases / 2);
    EXPECT_EQ(memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)],
              4 * biases / 2);
  });
}

// Frozen and trained layers in turn.
std::shared_ptr<nn::Sequential> interleaved() {
  auto net = small_model();
  for (std::size_t i = 0; i < net->parameters().size(); i += 4) {
    net->parameters()[i].set_requires_grad(false);
    net->parameters()[i + 1].set_requires_grad(false);
  }
  return net;
}

// With equal inputs the mean of the ranks is what a single process computes, bit for bit.
void train_and_unfreeze(const auto& model, nn::Module& module) {
  optim::SGD sgd(module.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 6; ++step) {
    sgd.zero_grad();
    if (step == 2) {
      const NoGrad no_grad;
      model(inputs_of(step, 0, 0));
      continue;
    }
    if (step == 4) module.requires_grad_(true);
    if (step == 5) Tensor(module.parameters()[2]).set_requires_grad(false);
    loss_of(model(inputs_of(step, 0, 0)).to(f32)).backward();
    sgd.step();
  }
}

TEST(FsdpTrainability, Row26FreezingAndUnfreezingBetweenStepsIsFollowed) {
  const auto alone = interleaved();
  train_and_unfreeze([&](const Tensor& x) { return (*alone)(x); }, *alone);
  const State expected = values_of(alone->named_parameters());
  for (const int world : {1, 2, 4}) {
    for (const bool wrapped : {true, false}) {
      for (const bool zero_copy : {true, false}) {
        Collected result;
        comm::LocalWorld(world).run([&](const Group& group) {
          FSDPOptions options{.zero_copy = zero_copy};
          if (wrapped) options.auto_wrap_policy = linears();
          FSDP fsdp(interleaved(), group, options);
          train_and_unfreeze([&](const Tensor& x) { return fsdp(x); }, fsdp.module());
          result.put(group->rank(), values_of(fsdp.full_state()));
        });
        EXPECT_EQ(result.get(), expected) << world << wrapped << zero_copy;
      }
    }
  }
}

struct Thrice : nn::ModuleOf<Thrice> {
  nn::Child<nn::Linear> frozen = make_module<nn::Linear>("frozen", 6, 6);
  nn::Child<nn::Linear> trained = make_module<nn::Linear>("trained", 6, 6);
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 3; ++i) {
      if (i == 1) {
        const NoGrad no_grad;
        y = y + tanh(trained(frozen(y.detach())));
      } else {
        y = tanh(trained(frozen(y)));
      }
    }
    return y;
  }
};

TEST(FsdpTrainability, Row26LayersCalledThreeTimesPartlyWithoutGradients) {
  const auto make = [] {
    manual_seed(13);
    auto net = std::make_shared<Thrice>();
    net->frozen->requires_grad_(false);
    return net;
  };
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(make(), group);
    FSDP fsdp(make(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    optim::SGD a(ddp.parameters(), {.lr = 0.1});
    optim::SGD b(fsdp.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      const Tensor x = some_input(group->rank(), step);
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

TEST(FsdpTrainability, Row34WhatIsUnfrozenLaterIsReducedInTheGivenDtype) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = one_weight();
    net->requires_grad_(false);
    FSDP fsdp(net, group, {.mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32}});
    fsdp(number(1));
    EXPECT_EQ(memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)], 0);
    fsdp.module().requires_grad_(true);
    group->reset_stats();
    sum(fsdp(number(group->rank() + 1)).to(f32)).backward();
    EXPECT_EQ(group->stats().of(Operation::reduce_scatter).logical_bytes, 2 * 64 * 2)
        << "a piece of 64 bytes of bf16 on each rank, as f32";
    if (fsdp.module().weight.numel() > 0) {
      EXPECT_EQ(grad_of(fsdp.module().weight), 1.5);
    }
  });
}

TEST(FsdpTrainability, ChangedWhileGradientsAreKeptIsAnError) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    {
      const auto guard = fsdp.no_sync();
      loss_of(fsdp(inputs_of(0, 0, 0))).backward();
    }
    Tensor frozen = fsdp.parameters()[0];
    frozen.set_requires_grad(false);
    for (int i = 0; i < 2; ++i) EXPECT_THROW(fsdp(inputs_of(0, 0, 0)), AutogradError) << i;
    // As it was: the accumulation goes on.
    frozen.set_requires_grad(true);
    loss_of(fsdp(inputs_of(0, 0, 1))).backward();
    FSDP untouched(small_model(), group, {.auto_wrap_policy = linears()});
    {
      const auto guard = untouched.no_sync();
      loss_of(untouched(inputs_of(0, 0, 0))).backward();
    }
    loss_of(untouched(inputs_of(0, 0, 1))).backward();
    for (std::size_t i = 0; i < fsdp.parameters().size(); ++i) {
      EXPECT_EQ(fsdp.parameters()[i].grad().to_vector<float>(),
                untouched.parameters()[i].grad().to_vector<float>());
    }
  });
}

TEST(FsdpTrainability, FrozenAndUnfrozenAgainBeforeAStepTrainsOn) {
  comm::LocalWorld(2).run([](const Group& group) {
    std::vector<std::vector<float>> gradients;
    for (const bool toggles : {false, true}) {
      FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
      Tensor weight = fsdp.parameters()[0];
      if (toggles) {
        weight.set_requires_grad(false);
        weight.set_requires_grad(true);
      }
      loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
      gradients.push_back(weight.grad().to_vector<float>());
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  });
}

TEST(FsdpTrainability, Row35ConvertingAWrappedModuleIsAnErrorThatNamesTheParameter) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = small_model();
    net->parameters()[0].set_requires_grad(false);
    net->parameters()[1].set_requires_grad(false);
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    EXPECT_THROW(fsdp.module().to(f64), InvalidArgument);
    // Frozen parameters alone are nobody's.
    for (const auto& [name, module] : net->named_modules()) {
      if (name == "1") module->to(f64);
    }
    const std::string message = message_of<AutogradError>([&] { fsdp(inputs_of(0, 0, 0)); });
    EXPECT_NE(message.find("1.weight"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace cohort
