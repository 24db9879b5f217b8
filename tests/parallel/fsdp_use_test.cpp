// Ways to run forward and backward that trip sharded engines up. Numbers in names are rows of the
// FSDP list in docs/conformance.md.

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <tuple>

#include "cohort/ops/ops.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using comm::Operation;

// The same steps under DDP and FSDP: `step(model, step)` returns a loss.
template <typename Make, typename Step>
void expect_equal_to_ddp(int world, const WrapPolicy& policy, Make make, Step step, int steps = 3) {
  for (const FSDPOptions& options : kinds(policy)) {
    comm::LocalWorld(world).run([&](const Group& group) {
      DDP ddp(make(), group, {.find_unused_parameters = true});
      FSDP fsdp(make(), group, options);
      optim::SGD a(ddp.parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::SGD b(fsdp.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int i = 0; i < steps; ++i) {
        a.zero_grad();
        b.zero_grad();
        step(ddp, i, group->rank()).backward();
        step(fsdp, i, group->rank()).backward();
        a.step();
        b.step();
      }
      EXPECT_EQ(values_of(fsdp.full_state()), values_of(ddp.module().named_parameters()))
          << options.sharding_strategy << ", zero_copy " << options.zero_copy;
    });
  }
}

Tensor input(int step, int rank) {
  return Tensor::full({2, 4}, 0.25 * (rank + 1) + 0.125 * step);
}

struct Pair {
  Tensor first;
  std::vector<Tensor> rest;
  static constexpr auto tensor_fields = std::tuple{&Pair::first, &Pair::rest};
};

// Odd widths, so that ranges cut rows, and clearing to None and to zero in turn.
TEST(FsdpUse, Row2LossesOfLinearPairsAreDdpsInEveryStep) {
  for (const std::string widths : {"16-15-8", "7-15-3", "16-17-8"}) {
    for (const int world : {1, 2, 3, 8}) {
      comm::LocalWorld(world).run([&](const Group& group) {
        const auto make = [&] {
          manual_seed(4);
          return models::make_mlp(widths);
        };
        DDP ddp(make(), group);
        FSDP fsdp(make(), group, {.auto_wrap_policy = linears()});
        optim::Adam a(ddp.parameters(), {.lr = 1e-2});
        optim::Adam b(fsdp.parameters(), {.lr = 1e-2});
        Generator generator(static_cast<std::uint64_t>(group->rank()) + 1);
        Tensor x = Tensor::empty({5, models::parse_widths(widths).front()});
        normal_(x, 0, 1, generator);
        for (int step = 0; step < 10; ++step) {
          const auto train = [&](auto& model, optim::Adam& adam) {
            model.module().zero_grad(/*set_to_none=*/step % 2 == 0);
            const Tensor loss = mean(model(x) * model(x));
            loss.backward();
            adam.step();
            return loss.item();
          };
          ASSERT_EQ(train(fsdp, b), train(ddp, a)) << widths << ", world " << world << ", " << step;
        }
      });
    }
  }
}

TEST(FsdpUse, Row18AUnitThatIsGatheredAheadAndNotUsedAnyMoreIsDropped) {
  struct Skips : nn::ModuleOf<Skips> {
    nn::Child<nn::Linear> a = make_module<nn::Linear>("a", 4, 4);
    nn::Child<nn::Linear> b = make_module<nn::Linear>("b", 4, 4);
    nn::Child<nn::Linear> c = make_module<nn::Linear>("c", 4, 4);
    bool skip = false;
    Tensor forward(const Tensor& x) { return c(skip ? a(x) : b(a(x))); }
  };
  for (FSDPOptions options : kinds(linears())) {
    options.forward_prefetch = true;
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Skips>(), group, {.find_unused_parameters = true});
      FSDP fsdp(std::make_shared<Skips>(), group, options);
      optim::SGD a(ddp.parameters(), {.lr = 0.1});
      optim::SGD b(fsdp.parameters(), {.lr = 0.1});
      fsdp.load_full_state(ddp.module().named_state());
      const auto rest = memory_stats().live[static_cast<std::size_t>(MemoryCategory::parameters)];
      for (int step = 0; step < 4; ++step) {
        ddp.module().skip = fsdp.module().skip = step % 2 == 1;
        a.zero_grad();
        b.zero_grad();
        sum(ddp(input(step, group->rank()))).backward();
        sum(fsdp(input(step, group->rank()))).backward();
        a.step();
        b.step();
        EXPECT_EQ(memory_stats().live[static_cast<std::size_t>(MemoryCategory::parameters)], rest);
      }
      EXPECT_EQ(values_of(fsdp.full_state()), values_of(ddp.module().named_parameters()));
    });
  }
}

TEST(FsdpUse, Row25OutputsAndInputsMayBeInContainers) {
  struct Inner : nn::ModuleOf<Inner> {
    nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 4, 4);
    Pair forward(const std::map<std::string, Tensor>& in, const std::optional<Tensor>& bias) {
      const Tensor y = fc(in.at("x"));
      return {bias ? y + *bias : y, {tanh(y), y * 2.0}};
    }
  };
  struct Outer : nn::ModuleOf<Outer> {
    nn::Child<Inner> a = make_module<Inner>("a");
    nn::Child<Inner> b = make_module<Inner>("b");
    std::tuple<Tensor, std::vector<Pair>> forward(const Tensor& x) {
      Pair first = a(std::map<std::string, Tensor>{{"x", x}}, std::optional<Tensor>{});
      Pair second = b(std::map<std::string, Tensor>{{"x", first.rest[0]}},
                      std::optional<Tensor>{first.first});
      return {first.rest[1], {second}};
    }
  };
  expect_equal_to_ddp(
      2, wrap::by_type<Inner>(),
      [] {
        manual_seed(3);
        return std::make_shared<Outer>();
      },
      [](auto& model, int step, int rank) {
        const auto [y, pairs] = model(input(step, rank));
        return sum(y) + sum(pairs[0].first * pairs[0].rest[1]);
      });
}

struct TwoOutputs : nn::ModuleOf<TwoOutputs> {
  nn::Child<nn::Linear> first = make_module<nn::Linear>("first", 4, 4);
  nn::Child<nn::Linear> second = make_module<nn::Linear>("second", 4, 4);
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor y = first(x);
    return {y, second(y)};
  }
};

std::shared_ptr<TwoOutputs> two_outputs() {
  manual_seed(6);
  return std::make_shared<TwoOutputs>();
}

TEST(FsdpUse, Row24AnOutputThatIsNoLongerUsedLeavesItsParametersAlone) {
  expect_equal_to_ddp(
      2, linears(), two_outputs,
      [](auto& model, int step, int rank) {
        const auto [y, z] = model(input(step, rank));
        return step < 3 ? sum(y) + sum(z) : sum(y);
      },
      5);
}

TEST(FsdpUse, Row51WritingInPlaceIntoAUnitsOutputIsAnError) {
  comm::LocalWorld(1).run([](const Group& group) {
    FSDP fsdp(two_outputs(), group, {.auto_wrap_policy = linears()});
    auto [y, z] = fsdp(input(0, group->rank()));
    Tensor half = narrow(z, 1, 0, 2);
    EXPECT_THROW(mul_(half, 3), AutogradError);
    // What the operation cannot see is seen in backward, where the values were saved.
    const Tensor loss = sum(z * z) + sum(y);
    Tensor raw = half.detach();
    mul_(raw, 3);
    EXPECT_THAT(message_of<AutogradError>([&] { loss.backward(); }),
                testing::HasSubstr("in place"));
  });
}

// Nested units, a policy and a frozen reference, as in preference optimisation.
TEST(FsdpUse, Row46TwoForwardsBeforeOneBackwardWithNestedUnits) {
  struct Block : nn::ModuleOf<Block> {
    nn::Child<nn::Linear> in = make_module<nn::Linear>("in", 4, 4);
    nn::Child<nn::Linear> out = make_module<nn::Linear>("out", 4, 4);
    Tensor gain = register_parameter("gain", Tensor::full({4}, 0.5));
    Tensor forward(const Tensor& x) { return x + out(tanh(in(x))) * gain; }
  };
  struct Net : nn::ModuleOf<Net> {
    nn::Child<Block> a = make_module<Block>("a");
    nn::Child<Block> b = make_module<Block>("b");
    Tensor forward(const Tensor& x) { return b(a(x)); }
  };
  expect_equal_to_ddp(
      2, wrap::by_type<Block, nn::Linear>(),
      [] {
        manual_seed(2);
        return std::make_shared<Net>();
      },
      [](auto& model, int step, int rank) {
        const Tensor chosen = model(input(step, rank));
        const Tensor rejected = model(input(step + 7, rank));
        return sum(sigmoid(sum(chosen, {1}) - sum(rejected, {1})));
      });
}

TEST(FsdpUse, Row48AnExceptionThatForwardCatchesOrOfAUnitAloneLeavesNothingOpen) {
  struct Fragile : nn::ModuleOf<Fragile> {
    nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 4, 4);
    bool bad = false;
    Tensor forward(const Tensor& x) {
      if (bad) throw std::range_error("in forward");
      return fc(x);
    }
  };
  struct Net : nn::ModuleOf<Net> {
    nn::Child<Fragile> a = make_module<Fragile>("a");
    nn::Child<nn::Linear> b = make_module<nn::Linear>("b", 4, 4);
    Tensor forward(const Tensor& x) {
      try {
        return b(a(x));
      } catch (const std::range_error&) {
        return b(x);
      }
    }
  };
  for (const FSDPOptions& options : kinds(wrap::by_type<Fragile>())) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(std::make_shared<Net>(), group, options);
      const Tensor x = input(0, group->rank());
      const auto gradient = [&] {
        fsdp.module().zero_grad();
        sum(fsdp(x)).backward();
        return fsdp.module().a->fc->weight.grad();
      };
      const auto expected = gradient().template to_vector<float>();
      fsdp.module().a->bad = true;
      EXPECT_THROW(fsdp.module().a(x), std::range_error) << "the unit alone";
      EXPECT_EQ(fsdp.module().a->fc->weight.rank(), 1);
      EXPECT_FALSE(gradient().defined()) << "the root goes on without it";
      EXPECT_TRUE(fsdp.module().b->weight.grad().defined());
      fsdp.module().a->bad = false;
      EXPECT_EQ(gradient().template to_vector<float>(), expected);
    });
  }
}

TEST(FsdpUse, ASharedBufferOfConvertedValuesServesSeveralForwards) {
  for (const bool evaluates : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const FSDPOptions options{.auto_wrap_policy = linears(),
                                .mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32}};
      FSDPOptions copying = options;
      copying.zero_copy = false;
      std::vector<State> states;
      for (const FSDPOptions& kind : {options, copying}) {
        FSDP fsdp(small_model(), group, kind);
        optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          const Tensor first = sum(fsdp(inputs_of(step, group->rank(), 0)).to(f32));
          Tensor second;
          if (evaluates) {
            const NoGrad no_grad;
            second = fsdp(inputs_of(step, group->rank(), 1));
            first.backward();
          } else {
            second = sum(fsdp(inputs_of(step, group->rank(), 1)).to(f32));
            (first + second).backward();
          }
          sgd.step();
        }
        states.push_back(values_of(fsdp.full_state()));
      }
      EXPECT_EQ(states[0], states[1]);
    });
  }
}

TEST(FsdpUse, ParametersWrittenBetweenForwardAndBackwardAreAnError) {
  for (const FSDPOptions& options : kinds(linears())) {
    comm::LocalWorld(1).run([&](const Group& group) {
      FSDPOptions alone = options;
      alone.mixed_precision.param_dtype = f64;  // or a world of one would keep them whole
      FSDP fsdp(small_model(), group, alone);
      optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
      const auto loss = [&] { return loss_of(fsdp(inputs_of(0, 0, 0)).to(f32)); };
      loss().backward();
      const Tensor old = loss();
      fsdp.reshard();
      sgd.step();
      EXPECT_THAT(message_of<AutogradError>([&] { old.backward(); }),
                  testing::HasSubstr("between its forward and its backward"));
    });
  }
}

// Zero-sized parameters that are the only trained ones of their unit.
TEST(FsdpUse, Row9UnitsWithoutTrainedElementsTrain) {
  struct Empty : nn::ModuleOf<Empty> {
    Tensor none = register_parameter("none", Tensor::zeros({0}));
    Tensor frozen = register_parameter("frozen", Tensor::ones({3}), /*requires_grad=*/false);
    Tensor forward(const Tensor& x) { return x * frozen + sum(none); }
  };
  for (const FSDPOptions& options : kinds({})) {
    for (const int world : {1, 2, 3}) {
      comm::LocalWorld(world).run([&](const Group& group) {
        FSDP fsdp(std::make_shared<Empty>(), group, options);
        optim::SGD sgd({fsdp.module().none}, {.lr = 0.1});
        for (int step = 0; step < 2; ++step) {
          sgd.zero_grad();
          sum(fsdp(Tensor::ones({3}))).backward();
          EXPECT_EQ(fsdp.module().none.grad().numel(), 0);
          sgd.step();
        }
      });
    }
  }
}

TEST(FsdpUse, GradOfAnInputIsOverOnAllRanksBeforeShardsMayBeWritten) {
  comm::LocalWorld(2, {.runtime = {.delay_seed = 5}}).run([&](const Group& group) {
    FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
    FSDP copying(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
    optim::SGD a(fsdp.parameters(), {.lr = 0.5});
    optim::SGD b(copying.parameters(), {.lr = 0.5});
    for (int step = 0; step < 10; ++step) {
      const auto sensitivity = [&](auto& model, optim::SGD& sgd) {
        sgd.zero_grad();
        loss_of(model(inputs_of(step, group->rank(), 0))).backward();
        const Tensor x = inputs_of(step, group->rank(), 1).set_requires_grad(true);
        const Tensor dx = grad({loss_of(model(x))}, {x})[0];
        sgd.step();
        return dx.to_vector<float>();
      };
      EXPECT_EQ(sensitivity(fsdp, a), sensitivity(copying, b)) << step;
    }
  });
}

// A forward without a backward leaves its slots behind, so that nothing blocks the host between the
// optimizer's queued work and the gathers of the next one.
TEST(FsdpInterleavings, GathersWaitForWhatTheOptimizerWrites) {
  const auto last_loss = [](std::uint64_t seed) {
    double loss = 0;
    comm::LocalWorld(2, {.runtime = {.schedule_seed = seed}}).run([&](const Group& group) {
      FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears(), .zero_copy = false});
      optim::SGD sgd(fsdp.parameters(), {.lr = 0.5});
      const auto forward = [&] { return loss_of(fsdp(inputs_of(0, group->rank(), 0))); };
      forward().backward();
      const Tensor unused = forward();
      for (int i = 0; i < 3; ++i) sgd.step();
      const double value = forward().item();
      if (group->rank() == 0) loss = value;
    });
    return loss;
  };
  const double expected = last_loss(0);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(last_loss(seed), expected) << "schedule " << seed;
  }
}

TEST(FsdpUse, Row47UnitsMayBeGatheredAheadOfForward) {
  expect_equal_to_ddp(
      2, linears(), [] { return small_model(); },
      [](auto& model, int step, int rank) {
        if constexpr (requires { model.unshard(); }) model.unshard();
        const Tensor first = loss_of(model(inputs_of(step, rank, 0)));
        return first + loss_of(model(inputs_of(step, rank, 1)));
      });
}

TEST(FsdpUse, Row50ParametersAreRowsBetweenForwardAndBackwardUnlessTheyAreKept) {
  comm::LocalWorld(2).run([](const Group& group) {
    for (const FSDPOptions& options : kinds(linears())) {
      FSDP fsdp(small_model(), group, options);
      const Tensor loss = loss_of(fsdp(inputs_of(0, group->rank(), 0)));
      const bool keeps = options.sharding_strategy == ShardingStrategy::shard_grad_op;
      EXPECT_EQ(fsdp.parameters()[0].rank(), keeps ? 2 : 1);
      loss.backward();
      EXPECT_EQ(fsdp.parameters()[0].rank(), 1);
    }
  });
}

TEST(FsdpUse, Row67AHundredStepsOverThreeGroupsDoNotHang) {
  comm::LocalWorld(4, {.timeout = std::chrono::seconds(60)}).run([](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.sharding_strategy = ShardingStrategy::hybrid_shard,
               .auto_wrap_policy = linears(),
               .forward_prefetch = true,
               .zero_copy = false,
               .shard_size = 2});
    optim::AdamW adam(fsdp.parameters(), {});
    for (int step = 0; step < 100; ++step) {
      adam.zero_grad();
      loss_of(fsdp(inputs_of(step % 5, group->rank(), 0))).backward();
      fsdp.clip_grad_norm_(1.0);
      adam.step();
    }
  });
}

TEST(FsdpUse, Row68EightRanksAreEqualToDdp) {
  expect_equal_to_ddp(
      8, linears(), [] { return small_model(); },
      [](auto& model, int step, int rank) { return loss_of(model(inputs_of(step, rank, 0))); }, 2);
}

TEST(FsdpUse, Row10TheRowsOfAllRanksCoverEachElementOnce) {
  for (const int world : {1, 2, 3, 4, 8}) {
    comm::LocalWorld(world).run([&](const Group& group) {
      FSDP fsdp(small_model(), group, {.auto_wrap_policy = linears()});
      const auto whole = small_model()->parameters();
      const auto rows = fsdp.parameters();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Tensor total = Tensor::scalar(static_cast<double>(rows[i].numel()));
        group->all_reduce(total).wait();
        EXPECT_EQ(total.item(), static_cast<double>(whole[i].numel()));
      }
    });
  }
}

}  // namespace
}  // namespace cohort
