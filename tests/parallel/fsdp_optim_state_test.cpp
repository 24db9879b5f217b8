// States of optimizers over sharded parameters. Numbers in names are rows of the FSDP list in
// docs/conformance.md.

#include <gtest/gtest.h>

#include <algorithm>

#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "cohort/parallel/zero_redundancy_optimizer.h"
#include "parallel/fsdp_state_fixture.h"

namespace cohort {
namespace {

using cohort::plain;

struct PlainOptim {
  struct Parameter {
    PlainTensor part;  // its values unused
    std::int64_t steps;
    std::map<std::string, std::vector<float>> state;
    bool operator==(const Parameter& other) const {
      return part.name == other.part.name && part.shape == other.part.shape &&
             part.begin == other.part.begin && part.end == other.part.end && steps == other.steps &&
             state == other.state;
    }
  };
  std::vector<Parameter> parameters;
  std::vector<std::pair<double, std::vector<std::string>>> groups;
  bool operator==(const PlainOptim&) const = default;
};

std::ostream& operator<<(std::ostream& out, const PlainOptim& optim) {
  for (const auto& entry : optim.parameters) {
    out << entry.part.name << " steps " << entry.steps << " states " << entry.state.size() << "; ";
  }
  return out << optim.groups.size() << " groups";
}

PlainOptim plain(const OptimState& state) {
  PlainOptim result;
  for (const auto& entry : state.parameters) {
    result.parameters.push_back(
        {{entry.name, entry.shape, entry.begin, entry.end, entry.replica, {}},
         entry.step_count,
         {}});
    for (const auto& [name, tensor] : entry.state) {
      result.parameters.back().state[name] = tensor.to_vector<float>();
    }
  }
  for (const auto& [lr, names] : state.groups) result.groups.emplace_back(lr, names);
  return result;
}

OptimState rebuilt(const PlainOptim& state) {
  OptimState result;
  for (const auto& [part, steps, values] : state.parameters) {
    result.parameters.push_back(
        {part.name, part.shape, part.begin, part.end, part.replica, steps, {}});
    for (const auto& [name, list] : values) {
      result.parameters.back().state.push_back(
          {name, Tensor::from(list, {static_cast<std::int64_t>(list.size())})});
    }
  }
  for (const auto& [lr, names] : state.groups) result.groups.push_back({lr, names});
  return result;
}

std::vector<OptimState> rebuilt(const std::vector<PlainOptim>& states) {
  std::vector<OptimState> result;
  for (const auto& state : states) result.push_back(rebuilt(state));
  return result;
}

enum class Kind { sgd, momentum, adam, amsgrad, adamw };

// Two groups of what is trained, weights and the rest; nothing of what is frozen.
template <typename Optim, typename Options>
std::unique_ptr<optim::Optimizer> make_grouped(nn::Module& module, const Options& options) {
  optim::ParamGroup<Options> weights;
  optim::ParamGroup<Options> rest;
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (!tensor.requires_grad()) continue;
    (name.ends_with("weight") ? weights : rest).params.push_back(tensor);
  }
  rest.options = options;
  rest.options->lr = options.lr / 2;
  return std::make_unique<Optim>(std::vector{weights, rest}, options);
}

std::unique_ptr<optim::Optimizer> make_optimizer(Kind kind, nn::Module& module) {
  switch (kind) {
    case Kind::sgd:
      return make_grouped<optim::SGD>(module, optim::SGDOptions{.lr = 0.1});
    case Kind::momentum:
      return make_grouped<optim::SGD>(module, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    case Kind::adam:
      return make_grouped<optim::Adam>(module, optim::AdamOptions{.lr = 0.01});
    case Kind::amsgrad:
      return make_grouped<optim::Adam>(module, optim::AdamOptions{.lr = 0.01, .amsgrad = true});
    case Kind::adamw:
      break;
  }
  return make_grouped<optim::AdamW>(module, optim::AdamWOptions{.lr = 0.01});
}

template <typename Model>
void steps(Model& model, optim::Optimizer& optimizer, const Group& group, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    loss_of(model(inputs_of(step, group->rank(), 0))).backward();
    optimizer.step();
    if (step == 1) optimizer.set_lr(optimizer.lr(1) / 4, 1);  // as a schedule does
  }
}

// Half of a run over two ranks, saved in every way, and its end.
struct SavedRun {
  std::vector<PlainTensor> model;
  std::vector<std::vector<PlainTensor>> model_parts;
  PlainOptim optim;
  std::vector<PlainOptim> optim_parts;
  State end;
};

SavedRun saved_run(Kind kind, const StateLayout& layout) {
  OfRanks<std::vector<PlainTensor>> model_parts(layout.world);
  OfRanks<PlainOptim> optim_parts(layout.world);
  SavedRun run;
  comm::LocalWorld(layout.world).run([&](const Group& group) {
    FSDP fsdp(state_net(1), group, layout.options());
    const auto optimizer = make_optimizer(kind, fsdp.module());
    steps(fsdp, *optimizer, group, 0, 3);
    group->reset_stats();
    model_parts.put(group->rank(), plain(fsdp.sharded_state()));
    optim_parts.put(group->rank(), plain(fsdp.sharded_optim_state(*optimizer)));
    EXPECT_EQ(group->stats().total().count, 0);
    const auto model = fsdp.full_state(true);
    const OptimState optim = fsdp.full_optim_state(*optimizer, true);
    EXPECT_EQ(optim.parameters.empty(), group->rank() != 0);
    const PlainOptim everywhere = plain(fsdp.full_optim_state(*optimizer));
    steps(fsdp, *optimizer, group, 3, 6);
    const State end = values_of(fsdp.full_state());
    if (group->rank() != 0) return;
    run.model = plain(model);
    run.optim = plain(optim);
    EXPECT_EQ(everywhere, run.optim);
    run.end = end;
  });
  run.model_parts = model_parts.get();
  run.optim_parts = optim_parts.get();
  return run;
}

class FsdpOptimState : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, FsdpOptimState,
                         testing::Values(Kind::sgd, Kind::momentum, Kind::adam, Kind::amsgrad,
                                         Kind::adamw));

TEST_P(FsdpOptimState, TrainingGoesOnBitwiseFromEveryKindOfState) {
  const SavedRun run = saved_run(GetParam(), {.world = 2});
  EXPECT_EQ(plain(assemble_full_optim_state(rebuilt(run.optim_parts))), run.optim);
  enum class Way { whole, of_rank0, own, parts };
  const auto go_on = [&](const Group& group, Way way, bool wrapped) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const StateLayout layout{.world = 2, .wrapped = wrapped, .zero_copy = wrapped};
    FSDP fsdp(state_net(2), group, layout.options());
    const auto optimizer = make_optimizer(GetParam(), fsdp.module());
    if (way == Way::whole) {
      fsdp.load_full_state(named(run.model));
      fsdp.load_full_optim_state(*optimizer, rebuilt(run.optim));
    } else if (way == Way::of_rank0) {
      fsdp.load_full_state(rank == 0 ? named(run.model) : std::vector<nn::NamedTensor>());
      fsdp.load_full_optim_state(*optimizer, rank == 0 ? rebuilt(run.optim) : OptimState());
    } else if (way == Way::own) {
      fsdp.load_sharded_state(sharded(run.model_parts[rank]));
      fsdp.load_sharded_optim_state(*optimizer, rebuilt(run.optim_parts[rank]));
    } else {
      fsdp.load_sharded_state(sharded(run.model_parts));
      fsdp.load_sharded_optim_state(*optimizer, rebuilt(run.optim_parts));
    }
    EXPECT_EQ(plain(fsdp.full_optim_state(*optimizer)), run.optim);
    steps(fsdp, *optimizer, group, 3, 6);
    EXPECT_EQ(values_of(fsdp.full_state()), run.end) << static_cast<int>(way) << wrapped;
  };
  comm::LocalWorld(2).run([&](const Group& group) {
    for (const Way way : {Way::whole, Way::of_rank0, Way::own, Way::parts}) {
      go_on(group, way, true);
      if (way != Way::own) go_on(group, way, false);  // another layout has other parts
    }
  });
}

TEST_P(FsdpOptimState, TrainingGoesOnBitwiseUnderDdpAndBackAgain) {
  const SavedRun run = saved_run(GetParam(), {.world = 2});
  PlainOptim back;
  std::vector<PlainTensor> model;
  comm::LocalWorld(2).run([&](const Group& group) {
    const auto net = state_net(2);
    DDP ddp(net, group, {.find_unused_parameters = true});
    const auto optimizer = make_optimizer(GetParam(), *net);
    load_full_state(*net, named(run.model));
    load_full_optim_state(*net, *optimizer, rebuilt(run.optim));
    EXPECT_EQ(plain(full_optim_state(*net, *optimizer)), run.optim);
    steps(ddp, *optimizer, group, 3, 5);
    if (group->rank() == 0) {
      back = plain(full_optim_state(*net, *optimizer));
      model = plain(net->named_state());
    }
    steps(ddp, *optimizer, group, 5, 6);
    EXPECT_EQ(values_of(net->named_state()), run.end);
  });
  comm::LocalWorld(2).run([&](const Group& group) {
    FSDP fsdp(state_net(2), group, {.auto_wrap_policy = linears()});
    const auto optimizer = make_optimizer(GetParam(), fsdp.module());
    fsdp.load_full_state(named(model));
    fsdp.load_full_optim_state(*optimizer, rebuilt(back));
    steps(fsdp, *optimizer, group, 5, 6);
    EXPECT_EQ(values_of(fsdp.full_state()), run.end);
  });
}

TEST_P(FsdpOptimState, Row60TheStateIsTheSameInAnyLayout) {
  for (const StateLayout& from : {StateLayout{.world = 3}, state_layouts().back()}) {
    const SavedRun run = saved_run(GetParam(), from);
    ASSERT_EQ(run.optim.groups.size(), 2u);
    EXPECT_EQ(run.optim.groups[0].second,
              (std::vector<std::string>{"first.weight", "last.weight"}));
    for (const auto& entry : run.optim.parameters) {
      EXPECT_FALSE(entry.part.name.starts_with("frozen"));
      EXPECT_EQ(entry.steps, entry.part.name == "spare" ? 0 : 3) << "spare is never used";
    }
    run_in_layouts([&](const Group& group, const StateLayout& to) {
      FSDP fsdp(state_net(2), group, to.options());
      const auto optimizer = make_optimizer(GetParam(), fsdp.module());
      for (const bool parts : {true, false}) {
        if (parts) {
          fsdp.load_sharded_optim_state(*optimizer, rebuilt(run.optim_parts));
        } else {
          optimizer->set_lr(5);
          fsdp.load_full_optim_state(*optimizer,
                                     group->rank() == 0 ? rebuilt(run.optim) : OptimState());
        }
        EXPECT_EQ(plain(fsdp.full_optim_state(*optimizer)), run.optim) << from << " into " << to;
      }
    });
  }
}

TEST(FsdpOptim, StatesAreRightUnderEverySchedule) {
  const SavedRun run = saved_run(Kind::adam, {.world = 2});
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    for (const bool zero_copy : {true, false}) {
      comm::LocalWorld(2, {.runtime = {.schedule_seed = seed}}).run([&](const Group& group) {
        FSDP fsdp(state_net(2), group, {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
        const auto optimizer = make_optimizer(Kind::adam, fsdp.module());
        const bool brings = group->rank() == 0;
        fsdp.load_full_state(brings ? named(run.model) : std::vector<nn::NamedTensor>());
        fsdp.load_full_optim_state(*optimizer, brings ? rebuilt(run.optim) : OptimState());
        steps(fsdp, *optimizer, group, 3, 6);
        fsdp.summon_full_params([&] {
          for (Tensor& tensor : fsdp.parameters()) tensor.copy_(tensor * 1.0);
        });
        State streamed;
        fsdp.for_each_full_tensor([&](const std::string& name, const Tensor& tensor) {
          streamed[name] = tensor.to_vector<double>();
        });
        EXPECT_EQ(streamed, run.end) << "schedule " << seed << ", zero copy " << zero_copy;
      });
    }
  }
}

TEST(FsdpOptim, AStateThatKnowsNoStepsTakesThemBack) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const auto optimizer = make_optimizer(Kind::adam, fsdp.module());
    const auto model = fsdp.full_state();
    const OptimState fresh = fsdp.full_optim_state(*optimizer);
    steps(fsdp, *optimizer, group, 0, 3);
    const State end = values_of(fsdp.full_state());
    fsdp.load_full_state(model);
    fsdp.load_full_optim_state(*optimizer, fresh);
    EXPECT_EQ(optimizer->step_count(fsdp.module().first->weight), 0);
    steps(fsdp, *optimizer, group, 0, 3);
    EXPECT_EQ(values_of(fsdp.full_state()), end);
  });
}

TEST(FsdpOptim, AnOptimizersOwnPartLoadsIntoItself) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const auto optimizer = make_optimizer(Kind::adam, fsdp.module());
    steps(fsdp, *optimizer, group, 0, 2);
    const PlainOptim before = plain(fsdp.sharded_optim_state(*optimizer));
    const OptimState live = fsdp.sharded_optim_state(*optimizer);
    fsdp.load_sharded_optim_state(*optimizer, live);
    EXPECT_EQ(plain(fsdp.sharded_optim_state(*optimizer)), before);
    steps(fsdp, *optimizer, group, 2, 3);
    EXPECT_NE(plain(live), before) << "shares memory with the optimizer";
  });
}

TEST(FsdpOptim, Row60IgnoredParametersAreSavedAndThoseOfOthersLeftAlone) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto net = state_net(1);
    FSDP fsdp(net, group, {.auto_wrap_policy = linears(), .ignored_parameters = {"spare"}});
    Tensor other = Tensor::ones({4}).set_requires_grad(true);
    const std::vector<Tensor> own{net->first->weight, net->spare};
    optim::SGD sgd(std::vector<optim::ParamGroup<optim::SGDOptions>>{{own}, {{other}}},
                   optim::SGDOptions{.lr = 1, .momentum = 0.5});
    const auto step = [&] {
      net->spare.set_grad(Tensor::full({3}, group->rank() + 1));
      other.set_grad(Tensor::ones({4}));
      sgd.step();
    };
    step();
    const OptimState state = fsdp.full_optim_state(sgd);
    ASSERT_EQ(state.parameters.size(), 2u);
    EXPECT_EQ(state.parameters[0].name, "spare");
    EXPECT_EQ(state.parameters[0].step_count, 1);
    EXPECT_EQ(state.parameters[0].state[0].tensor.to_vector<double>(),
              std::vector<double>(3, group->rank() + 1))
        << "each rank's own";
    EXPECT_EQ(state.parameters[1].step_count, 0);
    ASSERT_EQ(state.groups.size(), 2u);
    EXPECT_TRUE(state.groups[1].parameters.empty());
    step();
    fsdp.load_full_optim_state(sgd, group->rank() == 0 ? state : OptimState());
    EXPECT_EQ(sgd.step_count(net->spare), 1);
    EXPECT_EQ(sgd.state(net->spare)[0].tensor.to_vector<double>(), std::vector<double>(3, 1))
        << "rank 0's";
    EXPECT_EQ(sgd.step_count(other), 2);
  });
}

TEST(FsdpOptim, AStateLoadsIntoZeroRedundancyOptimizer) {
  const SavedRun run = saved_run(Kind::adam, {.world = 2});
  comm::LocalWorld(2).run([&](const Group& group) {
    const auto net = state_net(2);
    DDP ddp(net, group, {.find_unused_parameters = true});
    std::vector<Tensor> weights{net->first->weight, net->last->weight};
    std::vector<Tensor> rest{net->spare, net->first->bias, net->last->bias};
    ZeroRedundancyOptimizer<optim::Adam> zero(
        std::vector<optim::ParamGroup<optim::AdamOptions>>{{weights}, {rest}}, group,
        optim::AdamOptions{.lr = 0.01});
    load_full_state(*net, named(run.model));
    load_full_optim_state(*net, zero, rebuilt(run.optim));
    EXPECT_THROW(full_optim_state(*net, zero), NotSupported) << "a part of it";
    steps(ddp, zero, group, 3, 6);
    EXPECT_EQ(values_of(net->named_state()), run.end);
  });
}

TEST(FsdpOptimErrors, WhatDoesNotFitIsListedAtOnceAndChangesNothingOnAnyRank) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const auto optimizer = make_optimizer(Kind::adam, fsdp.module());
    steps(fsdp, *optimizer, group, 0, 2);
    const PlainOptim before = plain(fsdp.full_optim_state(*optimizer));
    OptimState bad = rebuilt(before);
    const auto at = [&](const std::string& name) -> OptimState::Parameter& {
      return *std::find_if(bad.parameters.begin(), bad.parameters.end(),
                           [&](const auto& entry) { return entry.name == name; });
    };
    at("first.weight").state.erase(at("first.weight").state.begin());
    at("first.bias").state[0].name = "momentum";
    at("last.weight").shape = {2, 2};
    at("last.bias").step_count = -1;
    at("spare").name = "extra";
    std::swap(bad.groups[0], bad.groups[1]);
    const auto load = [&] {
      fsdp.load_full_optim_state(*optimizer, group->rank() == 0 ? bad : OptimState());
    };
    const std::string message =
        group->rank() == 0 ? message_of<InvalidArgument>(load) : message_of<RemoteError>(load);
    for (const char* text :
         {"'first.weight: exp_avg' is missing", "'first.bias: momentum' is unknown",
          "'first.bias: exp_avg' is missing", "'last.weight' has shape [2, 2] instead of [5, 5]",
          "'last.bias' has the step count -1", "'extra' is unknown", "'spare' is missing",
          "parameter group 0 has 'first.bias', 'last.bias', 'spare' instead of 'first.weight', "
          "'last.weight'"}) {
      EXPECT_NE(message.find(text), std::string::npos) << text << " in: " << message;
    }
    // Parts that were saved at different times.
    OptimState own = fsdp.sharded_optim_state(*optimizer);
    OptimState later = rebuilt(plain(own));
    for (auto& entry : later.parameters) {
      if (entry.step_count > 0) entry.step_count = 9;
      entry.begin = 0;
      entry.end = entry.shape.product();
    }
    const std::vector<OptimState> mixed{own, later};
    EXPECT_THROW(fsdp.load_sharded_optim_state(*optimizer, mixed), InvalidArgument);
    EXPECT_THROW(assemble_full_optim_state(mixed), InvalidArgument);
    EXPECT_EQ(plain(fsdp.full_optim_state(*optimizer)), before) << "and the group goes on";
  });
}

TEST(FsdpOptimErrors, OptimizersThatDifferBetweenRanksAreNamed) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const auto optimizer =
        make_optimizer(group->rank() == 0 ? Kind::adam : Kind::amsgrad, fsdp.module());
    const std::string text =
        message_of<MismatchError>([&] { fsdp.full_optim_state(*optimizer, true); });
    EXPECT_NE(text.find("max_exp_avg_sq"), std::string::npos) << text;
    EXPECT_EQ(fsdp.full_state().size(), 8u) << "the group goes on";
  });
}

}  // namespace
}  // namespace cohort
