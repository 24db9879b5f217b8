// States of sharded models: whole, in parts, and from any layout into any other. Numbers in names
// are rows of the FSDP list in docs/conformance.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>

#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_state_fixture.h"

namespace cohort {
namespace {

void train(FSDP<StateNet>& fsdp, const Group& group) {
  std::vector<Tensor> trained;
  for (const Tensor& tensor : fsdp.parameters()) {
    if (tensor.requires_grad()) trained.push_back(tensor);
  }
  optim::SGD sgd(trained, {.lr = 0.5});
  loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
  sgd.step();
}

class FsdpStateWidth : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Width, FsdpStateWidth, testing::Values(2, 3, 4, 5));

TEST_P(FsdpStateWidth, Row56SavedInAnyLayoutLoadsIntoAnyOther) {
  const std::vector<StateLayout> layouts = state_layouts();
  struct Saved {
    StateLayout layout;
    std::vector<std::vector<PlainTensor>> parts;
    State whole;
  };
  std::vector<Saved> all;
  for (const StateLayout& layout : layouts) {
    all.push_back({layout, std::vector<std::vector<PlainTensor>>(layout.world), {}});
  }
  std::mutex mutex;
  run_in_layouts([&](const Group& group, const StateLayout& layout) {
    FSDP fsdp(state_net(1, GetParam()), group, layout.options());
    train(fsdp, group);
    fsdp.module().seen.fill_(9);
    auto parts = plain(fsdp.sharded_state());
    State whole = values_of(fsdp.full_state());
    const std::lock_guard lock(mutex);
    Saved& saved = *std::find_if(all.begin(), all.end(),
                                 [&](const Saved& entry) { return entry.layout == layout; });
    saved.parts[static_cast<std::size_t>(group->rank())] = std::move(parts);
    saved.whole = std::move(whole);
  });
  for (const Saved& saved : all) {
    EXPECT_EQ(values_of(assemble_full_state(sharded(saved.parts))), saved.whole) << saved.layout;
    const auto bare = state_net(2, GetParam());
    load_full_state(*bare, assemble_full_state(sharded(saved.parts)));
    EXPECT_EQ(values_of(bare->named_state()), saved.whole) << saved.layout;
  }
  run_in_layouts([&](const Group& group, const StateLayout& layout) {
    FSDP fsdp(state_net(2, GetParam()), group, layout.options());
    for (const Saved& saved : all) {
      for (ShardedTensor& part : fsdp.sharded_state()) part.tensor.fill_(-1);
      fsdp.load_sharded_state(sharded(saved.parts));
      EXPECT_EQ(values_of(fsdp.full_state()), saved.whole) << saved.layout << " into " << layout;
    }
  });
}

TEST_P(FsdpStateWidth, AWholeStateLoadsAnywhereFromAllRanksOrTheFirst) {
  std::vector<PlainTensor> saved;
  comm::LocalWorld(3).run([&](const Group& group) {
    FSDP fsdp(state_net(1, GetParam()), group, {.auto_wrap_policy = linears()});
    train(fsdp, group);
    const auto full = fsdp.full_state(/*rank0_only=*/true);
    EXPECT_EQ(full.empty(), group->rank() != 0);
    if (group->rank() == 0) saved = plain(full);
  });
  const State expected = values_of(named(saved));
  run_in_layouts([&](const Group& group, const StateLayout& layout) {
    for (const bool from_rank0 : {false, true}) {
      FSDP fsdp(state_net(2, GetParam()), group, layout.options());
      const bool brings = !from_rank0 || group->rank() == 0;
      fsdp.load_full_state(brings ? named(saved) : std::vector<nn::NamedTensor>());
      EXPECT_EQ(values_of(fsdp.full_state()), expected) << layout;
    }
  });
}

TEST(FsdpState, EveryRankGetsTheWholeStateInTheModulesOrder) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(3).run([&](const Group& group) {
      const auto net = state_net(1);
      const auto before = plain(net->named_state());
      FSDP fsdp(net, group, {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const auto full = fsdp.full_state();
      ASSERT_EQ(full.size(), before.size());
      for (std::size_t i = 0; i < full.size(); ++i) {
        EXPECT_EQ(full[i].name, before[i].name);
        EXPECT_EQ(full[i].tensor.shape(), before[i].shape);
        EXPECT_EQ(full[i].tensor.to_vector<float>(), before[i].values);
        Tensor(full[i].tensor).fill_(1000);
      }
      EXPECT_EQ(values_of(fsdp.full_state()), values_of(named(before))) << "memory of its own";
    });
  }
}

TEST(FsdpState, Row54AShardedStateIsTheRowsThemselvesUnderTheModulesNames) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto net = state_net(1);
    std::vector<PlainTensor> before = plain(net->named_state());
    FSDP fsdp(net, group,
              {.sharding_strategy = ShardingStrategy::shard_grad_op,
               .auto_wrap_policy = linears(),
               .zero_copy = false});
    group->reset_stats();
    const ShardedState state = fsdp.sharded_state();
    EXPECT_EQ(group->stats().total().count, 0);
    ASSERT_EQ(state.size(), before.size());
    std::vector<nn::NamedTensor> live = net->named_state();
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(state[i].name, before[i].name);
      EXPECT_EQ(state[i].shape, before[i].shape);
      EXPECT_EQ(state[i].tensor.raw(), live[i].tensor.raw()) << "shares memory";
      const auto& values = before[i].values;
      EXPECT_EQ(state[i].tensor.to_vector<float>(),
                std::vector<float>(values.begin() + state[i].begin, values.begin() + state[i].end));
    }

    const Tensor loss = loss_of(fsdp(inputs_of(0, group->rank(), 0)));
    EXPECT_EQ(net->first->weight.rank(), 2) << "still gathered";
    const auto kept = fsdp.sharded_state();
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(kept[i].tensor.raw(), state[i].tensor.raw());
      EXPECT_EQ(kept[i].tensor.to_vector<float>(), state[i].tensor.to_vector<float>());
    }
    loss.backward();
    optim::SGD({net->first->weight, net->first->bias}, {.lr = 0.5}).step();
    live = net->named_state();
    bool moved = false;
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(state[i].tensor.to_vector<float>(), live[i].tensor.to_vector<float>())
          << "follows the optimizer";
      moved = moved || state[i].tensor.to_vector<float>() !=
                           std::vector<float>(before[i].values.begin() + state[i].begin,
                                              before[i].values.begin() + state[i].end);
    }
    EXPECT_TRUE(moved);
  });
}

TEST(FsdpState, Row55LoadingThisRanksPartKeepsAddresses) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(3).run([&](const Group& group) {
      FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const ShardedState live = fsdp.sharded_state();
      std::vector<PlainTensor> other = plain(live);
      for (auto& entry : other) {
        std::fill(entry.values.begin(), entry.values.end(), 42 + group->rank());
      }
      fsdp.load_sharded_state(sharded(other));
      const ShardedState after = fsdp.sharded_state();
      for (std::size_t i = 0; i < live.size(); ++i) {
        EXPECT_EQ(after[i].tensor.raw(), live[i].tensor.raw());
        EXPECT_EQ(after[i].tensor.to_vector<float>(), other[i].values);
      }
      fsdp.load_sharded_state(after);  // of the parameters' own memory
      EXPECT_EQ(plain(fsdp.sharded_state()).back().values, other.back().values);
    });
  }
}

TEST(FsdpState, Row61AHybridModelFollowsRank0) {
  for (const bool zero_copy : {true, false}) {
    const FSDPOptions hybrid{.sharding_strategy = ShardingStrategy::hybrid_shard,
                             .auto_wrap_policy = linears(),
                             .sync_module_states = true,
                             .zero_copy = zero_copy,
                             .shard_size = 2};
    const auto expect_all = [](FSDP<StateNet>& fsdp, double value) {
      for (const auto& [name, values] : values_of(fsdp.full_state())) {
        EXPECT_EQ(values, std::vector<double>(values.size(), value)) << name;
      }
    };
    comm::LocalWorld(4).run([&](const Group& group) {
      const auto net = state_net(1);
      for (auto& [name, tensor] : net->named_state()) tensor.detach().fill_(group->rank() + 3);
      FSDP fsdp(net, group, hybrid);
      expect_all(fsdp, 3);
      // Replicas that have parted get one state again.
      for (const ShardedTensor& part : fsdp.sharded_state()) {
        EXPECT_EQ(part.replica, part.name == "seen" ? group->rank() : group->rank() / 2);
        Tensor(part.tensor).fill_(100 + group->rank());
      }
      auto state = fsdp.full_state(/*rank0_only=*/true);
      for (auto& [name, tensor] : state) tensor.fill_(5);
      fsdp.load_full_state(state);
      expect_all(fsdp, 5);
    });
  }
}

TEST(FsdpState, MastersAreSavedInTheirOwnDtype) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const auto net = state_net(1);
      const State before = values_of(net->named_state());
      FSDP fsdp(net, group, {.mixed_precision = {.param_dtype = bf16}, .zero_copy = zero_copy});
      EXPECT_EQ(fsdp.full_state().front().tensor.dtype(), f32);
      EXPECT_EQ(values_of(fsdp.full_state()), before) << "not rounded to bf16";
      fsdp.summon_full_params([&] {
        EXPECT_EQ(net->first->weight.dtype(), f32);
        EXPECT_EQ(net->first->weight.to_vector<double>(), before.at("first.weight"));
      });
    });
  }
}

TEST(FsdpState, ALoadAfterAForwardIsSeenAndItsBackwardIsAnError) {
  for (const bool zero_copy : {true, false}) {
    for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
      comm::LocalWorld(2).run([&](const Group& group) {
        FSDP fsdp(state_net(1), group,
                  {.sharding_strategy = strategy,
                   .auto_wrap_policy = linears(),
                   .backward_prefetch = BackwardPrefetch::none,
                   .zero_copy = zero_copy});
        const Tensor x = inputs_of(0, 0, 0);
        const Tensor loss = loss_of(fsdp(x));
        auto state = fsdp.full_state();
        for (auto& [name, tensor] : state) tensor.fill_(0);
        fsdp.load_full_state(state);
        for (const double value : fsdp(x).template to_vector<double>()) EXPECT_EQ(value, 0);
        EXPECT_THROW(loss.backward(), Error) << "through weights that are gone";
      });
    }
  }
}

// Bytes that a rank had beside what it has at rest, at most, while `body` ran.
std::int64_t extra_bytes(const std::function<void()>& body) {
  const auto& allocator = Context::current().runtime()->allocator(Device::cpu());
  const std::int64_t before = allocator->stats().live_total;
  allocator->reset_peak();
  body();
  return allocator->stats().peak_total - before;
}

TEST(FsdpStateMemory, OnlyTheRankThatWantsAStateHoldsItAndAStreamHoldsATensor) {
  constexpr std::int64_t kTensor = 256 * 256 * 4;
  constexpr std::int64_t kState = 4 * (kTensor + 256 * 4);
  constexpr std::int64_t kSmall = 16 * 1024;
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(3).run([&](const Group& group) {
      FSDP fsdp(models::make_mlp("256-256-256-256-256"), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      std::vector<nn::NamedTensor> state;
      const auto save = [&] { state = fsdp.full_state(/*rank0_only=*/true); };
      const std::int64_t held = extra_bytes(save);
      const std::int64_t streamed = extra_bytes(
          [&] { fsdp.for_each_full_tensor([](const std::string&, const Tensor&) {}, true); });
      const std::int64_t loading = extra_bytes([&] { fsdp.load_full_state(state); });
      if (group->rank() == 0) {
        EXPECT_GE(held, kState);
        EXPECT_LE(held, kState + kSmall);
        EXPECT_LE(streamed, kTensor + kSmall);
      } else {
        EXPECT_LE(held, kSmall);
        EXPECT_LE(streamed, kSmall);
      }
      EXPECT_LE(loading, kTensor + kSmall) << "Row57: one tensor at a time";
      const std::int64_t everywhere =
          extra_bytes([&] { fsdp.for_each_full_tensor([](const auto&, const auto&) {}); });
      EXPECT_LE(everywhere, kTensor + kSmall);

      optim::Adam adam(fsdp.parameters());
      sum(fsdp(Tensor::ones({1, 256}))).backward();
      adam.step();
      const std::int64_t optim = extra_bytes([&] {
        EXPECT_EQ(fsdp.full_optim_state(adam, true).groups.size(), group->rank() == 0 ? 1u : 0u);
      });
      EXPECT_LE(optim, group->rank() == 0 ? 2 * kState + kSmall : kSmall);
    });
  }
}

TEST(FsdpState, Row57TensorsLongerThanARoundArriveWhole) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(std::make_shared<nn::Linear>(1100, 1000), group);
    auto state = fsdp.full_state(/*rank0_only=*/true);
    for (auto& [name, tensor] : state) {
      Tensor ramp = Tensor::arange(tensor.numel()).to(f32).reshape(tensor.shape());
      tensor = ramp;
    }
    fsdp.load_full_state(state);
    const auto full = fsdp.full_state();
    const auto values = full.front().tensor.to_vector<float>();
    ASSERT_EQ(values.size(), 1100000u);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i));
  });
}

TEST(FsdpStateErrors, WhatDoesNotFitIsListedAtOnceAndChangesNothingOnAnyRank) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const State before = values_of(fsdp.full_state());
    const auto expect_refused = [&](const std::string& message,
                                    const std::vector<std::string>& texts) {
      for (const std::string& text : texts) {
        EXPECT_NE(message.find(text), std::string::npos) << text << " in: " << message;
      }
      EXPECT_EQ(values_of(fsdp.full_state()), before);
    };
    auto bad = fsdp.full_state();
    const auto at = [&](const std::string& name) -> nn::NamedTensor& {
      return *std::find_if(bad.begin(), bad.end(), [&](const auto& e) { return e.name == name; });
    };
    at("frozen.weight").tensor = Tensor::ones({2, 2});
    at("last.bias").tensor = {};
    bad.push_back(at("spare"));
    at("first.weight").name = "frist.weight";
    const std::vector<std::string> texts{
        "'frist.weight' is unknown", "'first.weight' is missing", "'spare' is there twice",
        "'frozen.weight' has shape [2, 2] instead of [5, 5]", "'last.bias' is undefined"};
    expect_refused(message_of<InvalidArgument>([&] { fsdp.load_full_state(bad); }), texts);
    // On rank 0 alone: the others know.
    const auto load = [&](bool brings) {
      fsdp.load_full_state(brings ? bad : std::vector<nn::NamedTensor>());
    };
    if (group->rank() == 0) {
      expect_refused(message_of<InvalidArgument>([&] { load(true); }), texts);
    } else {
      expect_refused(message_of<RemoteError>([&] { load(false); }), texts);
    }
    EXPECT_THROW(fsdp.load_full_state({}), InvalidArgument) << "nobody brings one";
  });
}

TEST(FsdpStateErrors, PartsThatAreMissingOverlapOrAreMisshapenAreListed) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(state_net(1), group, {.auto_wrap_policy = linears()});
    const State before = values_of(fsdp.full_state());
    const Tensor ten = Tensor::ones({10});
    ShardedState bad;
    for (const auto& [name, tensor] : fsdp.full_state()) {
      bad.push_back({name, tensor.shape(), 0, tensor.numel(), 0, tensor});
    }
    const auto at = [&](const std::string& name) -> ShardedTensor& {
      return *std::find_if(bad.begin(), bad.end(), [&](const auto& e) { return e.name == name; });
    };
    at("first.weight") = {"first.weight", {5, 12}, 0, 10, 0, ten};
    bad.push_back({"first.weight", {5, 12}, 20, 60, 0, Tensor::ones({40})});
    at("frozen.weight") = {"frozen.weight", {5, 5}, 0, 10, 0, ten};
    bad.push_back({"frozen.weight", {5, 5}, 5, 25, 0, Tensor::ones({20})});
    at("last.weight").end = 26;
    at("last.bias").tensor = ten;
    at("spare").name = "extra";
    const std::string own = message_of<InvalidArgument>(
        [&] { fsdp.load_sharded_state(group->rank() == 0 ? bad : ShardedState{}); });
    if (group->rank() == 0) {
      for (const char* text : {"'first.weight' lacks the elements [10, 20)",
                               "'frozen.weight' has parts that overlap: [0, 10) and [5, 25)",
                               "'last.weight' has a part [0, 26) of its 25 elements",
                               "'last.bias' has 10 elements in its part [0, 5)",
                               "'extra' is unknown", "'spare' is missing"}) {
        EXPECT_NE(own.find(text), std::string::npos) << text << " in: " << own;
      }
      const std::string whole =
          message_of<InvalidArgument>([&] { assemble_full_state(std::span(&bad, 1)); });
      EXPECT_NE(whole.find("'first.weight' lacks the elements [10, 20)"), std::string::npos);
    }
    // One rank alone lacks something.
    ShardedState parts = fsdp.sharded_state();
    if (group->rank() == 1) parts.pop_back();
    if (group->rank() == 1) {
      EXPECT_THROW(fsdp.load_sharded_state(parts), InvalidArgument);
    } else {
      EXPECT_THROW(fsdp.load_sharded_state(parts), RemoteError);
    }
    EXPECT_EQ(values_of(fsdp.full_state()), before) << "and the group goes on";
  });
}

TEST(FsdpStateErrors, ACallOfOneRankAloneEndsByTheDeadlineAndUnequalCallsAtOnce) {
  for (const int caller : {0, 1}) {
    std::latch over(1);
    comm::LocalWorld(2, {.timeout = Milliseconds(400)}).run([&](const Group& group) {
      FSDP fsdp(state_net(1), group, {.zero_copy = caller == 0});
      if (group->rank() == caller) {
        EXPECT_THROW(fsdp.full_state(/*rank0_only=*/true), TimeoutError);
        over.count_down();
      } else {
        over.wait();
      }
    });
  }
  comm::LocalWorld(2).run([&](const Group& group) {
    FSDP fsdp(state_net(1), group);
    EXPECT_THROW(fsdp.full_state(group->rank() == 0), MismatchError);
    EXPECT_EQ(fsdp.full_state().size(), 8u) << "the group goes on";
  });
}

TEST(FsdpStateErrors, ARankWithoutMemoryForTheStateEndsItForAll) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(models::make_mlp("64-256-64"), group, {.zero_copy = zero_copy});
      if (group->rank() == 0) {
        const auto& allocator = Context::current().runtime()->allocator(Device::cpu());
        allocator->set_limit(allocator->stats().live_total + 16 * 1024);
        EXPECT_THROW(fsdp.full_state(/*rank0_only=*/true), OutOfMemory);
      } else {
        const std::string text = message_of<PeerError>([&] { fsdp.full_state(true); });
        EXPECT_NE(text.find("in full_state: [allocate]"), std::string::npos) << text;
      }
    });
  }
}

TEST(FsdpStateErrors, AnExceptionOfTheReceiverReachesAllRanksAndHarmsNothing) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(state_net(1), group, {.zero_copy = zero_copy});
      int calls = 0;
      const auto receive = [&](const std::string&, const Tensor&) {
        if (++calls == 3) throw FileError("disk full");
      };
      if (group->rank() == 0) {
        EXPECT_THROW(fsdp.for_each_full_tensor(receive, true), FileError);
        EXPECT_EQ(calls, 3);
      } else {
        const std::string text =
            message_of<RemoteError>([&] { fsdp.for_each_full_tensor(receive, true); });
        EXPECT_NE(text.find("rank 0 failed: disk full"), std::string::npos) << text;
      }
      EXPECT_EQ(fsdp.full_state().size(), 8u);
    });
  }
}

}  // namespace
}  // namespace cohort
