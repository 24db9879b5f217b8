// Models made on the meta device, which FSDP brings to life unit by unit. Numbers in names are rows
// of the FSDP list in docs/conformance.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "cohort/nn/init.h"
#include "cohort/nn/norm.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::Not;

nn::LinearOptions linear_on(Device device, bool bias = true) {
  return {.bias = bias, .device = device};
}

// A unit in the middle, with modules of the root before and after it.
struct Net : nn::ModuleOf<Net> {
  explicit Net(std::int64_t dim, Device device) : device_(device), dim_(dim) {}
  Tensor forward(const Tensor& x) { return last(norm(middle(first(x)))); }
  Device device_;
  std::int64_t dim_;
  nn::Child<nn::Linear> first = make_module<nn::Linear>("first", 8, dim_, linear_on(device_));
  nn::Child<nn::Linear> middle = make_module<nn::Linear>("middle", dim_, dim_, linear_on(device_));
  nn::Child<nn::BatchNorm1d> norm =
      make_module<nn::BatchNorm1d>("norm", dim_, nn::BatchNormLayerOptions{.device = device_});
  nn::Child<nn::Linear> last = make_module<nn::Linear>("last", dim_, 3, linear_on(device_));
};

WrapPolicy only(const std::string& name) {
  return wrap::by_predicate(
      [name](const nn::Module&, const std::string& at) { return at == name; });
}

class FsdpMeta : public testing::TestWithParam<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Row58, FsdpMeta,
                         testing::Combine(testing::Values(8, 3, 1), testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return str("dim", std::get<0>(info.param), "_ranks",
                                      std::get<1>(info.param));
                         });

TEST_P(FsdpMeta, HasTheValuesOfAModelMadeOnTheCpu) {
  const auto [dim, world] = GetParam();
  for (const bool zero_copy : {true, false}) {
    for (const WrapPolicy& policy : {only("middle"), linears()}) {
      comm::LocalWorld(world).run([&, dim = dim](const Group& group) {
        manual_seed(17);
        const auto real = std::make_shared<Net>(dim, Device::cpu());
        const Tensor next = Tensor::empty({5});
        nn::init::uniform_(next);
        manual_seed(17);
        const auto net = std::make_shared<Net>(dim, Device::meta());
        FSDP fsdp(net, group, {.auto_wrap_policy = policy, .zero_copy = zero_copy});
        const Tensor next_after = Tensor::empty({5});
        nn::init::uniform_(next_after);
        EXPECT_EQ(next_after.to_vector<float>(), next.to_vector<float>()) << "numbers drawn";
        EXPECT_EQ(values_of(fsdp.full_state()), values_of(real->named_state()));
        EXPECT_TRUE(net->first->weight.requires_grad());
        const Tensor x = Tensor::ones({4, 8});
        optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
        sum(fsdp(x)).backward();
        sgd.step();
      });
    }
  }
}

TEST(FsdpMeta, PeakIsTheShardsAndOneUnit) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const std::int64_t before = memory_stats().live_total;
      Context::current().runtime()->allocator(Device::cpu())->reset_peak();
      FSDP fsdp(models::make_mlp("256-512-512-512-256", {.device = Device::meta()}), group,
                {.auto_wrap_policy = linears(), .zero_copy = zero_copy});
      const std::int64_t unit = (512 * 512 + 512) * 4;
      const std::int64_t shards = fsdp.plan().parameter_bytes;
      const std::int64_t peak = memory_stats().peak_total - before;
      EXPECT_GE(peak, shards);
      EXPECT_LE(peak, shards + unit + 1024) << "beside it a few bytes for agreements";
      EXPECT_LT(peak, 4 * unit) << "less than the whole model";
    });
  }
}

TEST(FsdpMeta, Row58SyncModuleStatesSendsRank0sValuesToModelsOnMeta) {
  for (const bool zero_copy : {true, false}) {
    Collected result;
    comm::LocalWorld(3).run([&](const Group& group) {
      manual_seed(static_cast<std::uint64_t>(40 + group->rank()));
      const bool first = group->rank() == 0;
      const auto net = std::make_shared<Net>(8, first ? Device::cpu() : Device::meta());
      if (first) net->norm->running_mean.fill_(2.5);
      const State before = first ? values_of(net->named_state()) : State();
      FSDP fsdp(
          net, group,
          {.auto_wrap_policy = linears(), .sync_module_states = true, .zero_copy = zero_copy});
      const State state = values_of(fsdp.full_state());
      if (first) {
        EXPECT_EQ(state, before);
      }
      result.put(group->rank(), state);
    });
    result.get();
  }
}

// Rank 0 makes the values, and all have its.
TEST(FsdpMeta, SyncModuleStatesFromAModelOnMeta) {
  Collected result;
  comm::LocalWorld(2).run([&](const Group& group) {
    manual_seed(static_cast<std::uint64_t>(40 + group->rank()));
    FSDP fsdp(std::make_shared<Net>(3, Device::meta()), group,
              {.auto_wrap_policy = linears(), .sync_module_states = true});
    result.put(group->rank(), values_of(fsdp.full_state()));
  });
  manual_seed(40);
  EXPECT_EQ(result.get(), values_of(std::make_shared<Net>(3, Device::cpu())->named_state()));
}

TEST(FsdpMeta, ParamInitFnFillsTheTensorsOfEachModule) {
  comm::LocalWorld(2).run([](const Group& group) {
    std::vector<std::string> seen;
    const auto net = std::make_shared<Net>(3, Device::meta());
    FSDP fsdp(net, group, {.auto_wrap_policy = linears(), .param_init_fn = [&](nn::Module& module) {
                             for (const auto& [name, tensor] : module.named_parameters(false)) {
                               nn::init::constant_(tensor, 0.5);
                               seen.push_back(name);
                             }
                             for (const auto& [name, tensor] : module.named_buffers(false)) {
                               nn::init::constant_(tensor, 1);
                             }
                           }});
    EXPECT_EQ(seen.size(), 8u);
    for (const auto& [name, values] : values_of(fsdp.full_state())) {
      for (const double value : values) {
        EXPECT_EQ(value,
                  name.find("running") == name.npos && name.find("num") == name.npos ? 0.5 : 1);
      }
    }
  });
}

// The same module in two places, and one tensor in two modules.
TEST(FsdpMeta, TiedParametersStayTied) {
  struct Uses : nn::ModuleOf<Uses> {
    explicit Uses(const Tensor& shared) { weight = register_parameter("weight", shared); }
    Tensor forward(const Tensor& x) { return matmul(x, weight); }
    Tensor weight;
  };
  struct Tied : nn::ModuleOf<Tied> {
    nn::Child<nn::Linear> in =
        make_module<nn::Linear>("in", 4, 4, linear_on(Device::meta(), false));
    nn::Child<nn::Linear> mid = make_module<nn::Linear>("mid", 4, 4, linear_on(Device::meta()));
    nn::Child<Uses> uses = make_module<Uses>("uses", in->weight);
    nn::Child<nn::Linear> out = register_module("out", std::shared_ptr<nn::Linear>(in));
    Tensor forward(const Tensor& x) { return out(uses(mid(in(x)))); }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    manual_seed(8);
    const nn::Linear like(4, 4, linear_on(Device::cpu(), false));
    manual_seed(8);
    const auto net = std::make_shared<Tied>();
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    EXPECT_TRUE(net->uses->weight.is_same(net->in->weight));
    EXPECT_EQ(values_of(fsdp.full_state()).at("in.weight"), like.weight.to_vector<double>());
    sum(fsdp(Tensor::ones({2, 4}))).backward();
    EXPECT_TRUE(net->in->weight.grad().defined());
  });
}

TEST(FsdpMeta, APartOfTheModelMayHaveValuesAlready) {
  comm::LocalWorld(2).run([](const Group& group) {
    manual_seed(2);
    auto net = std::make_shared<nn::Sequential>(nn::Linear(4, 4),
                                                nn::Linear(4, 4, linear_on(Device::meta())));
    const State before = values_of({net->named_parameters()[0]});
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    EXPECT_EQ(values_of(fsdp.full_state()).at(before.begin()->first), before.begin()->second);
  });
}

// Two modules that cannot be initialised, one of them in a unit of its own.
struct Bare : nn::ModuleOf<Bare> {
  explicit Bare(Device device) {
    scale = register_parameter("scale", Tensor::ones({4}, {.device = device}));
    shift = register_buffer("shift", Tensor::zeros({4}, {.device = device}));
  }
  Tensor forward(const Tensor& x) { return x * scale + shift; }
  Tensor scale, shift;
};
struct HasBare : nn::ModuleOf<HasBare> {
  nn::Child<nn::Linear> fc = make_module<nn::Linear>("fc", 4, 4, linear_on(Device::meta()));
  nn::Child<Bare> a = make_module<Bare>("a", Device::meta());
  nn::Child<nn::Linear> fd = make_module<nn::Linear>("fd", 4, 4, linear_on(Device::meta()));
  nn::Child<Bare> b = make_module<Bare>("b", Device::meta());
  Tensor forward(const Tensor& x) { return b(fd(a(fc(x)))); }
};

TEST(FsdpMeta, ModulesThatCannotBeInitialisedAreListedAtOnceAndNothingHasChanged) {
  for (const bool zero_copy : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const auto net = std::make_shared<HasBare>();
      manual_seed(6);
      const PhiloxState generator = Context::current().init_generator.state();
      const std::int64_t before = memory_stats().live_total;
      const std::string message = message_of<InvalidArgument>([&] {
        FSDP(net, group,
             {.auto_wrap_policy = wrap::by_type<nn::Linear, Bare>(), .zero_copy = zero_copy});
      });
      for (const char* name : {"'a.scale'", "'a.shift'", "'b.scale'", "'b.shift'"}) {
        EXPECT_THAT(message, HasSubstr(name));
      }
      EXPECT_THAT(message, Not(HasSubstr("'fc")));
      EXPECT_THAT(message, Not(HasSubstr("'fd")));
      for (const auto& [name, tensor] : net->named_state()) {
        EXPECT_EQ(tensor.device(), Device::meta()) << name;
        EXPECT_NE(tensor.shape(), Shape{}) << name;
      }
      EXPECT_EQ(net->fc->weight.shape(), (Shape{4, 4}));
      EXPECT_EQ(memory_stats().live_total, before);
      EXPECT_EQ(Context::current().init_generator.state().offset, generator.offset);
      EXPECT_EQ(group->failure(), nullptr);
      FSDP fsdp(net, group, {.param_init_fn = [](nn::Module& module) {
                  for (const Tensor& tensor : module.parameters(false)) nn::init::ones_(tensor);
                  for (const Tensor& tensor : module.buffers(false)) nn::init::zeros_(tensor);
                }});
      EXPECT_EQ(values_of(fsdp.full_state()).at("fd.bias"), std::vector<double>(4, 1));
    });
  }
}

TEST(FsdpMeta, AModuleOfBothKindsNeedsAnInitFunction) {
  comm::LocalWorld(2).run([](const Group& group) {
    auto net = std::make_shared<nn::Linear>(4, 4);
    net->bias.impl()->swap_view(*Tensor::empty({4}, {.device = Device::meta()}).impl());
    const std::string message = message_of<InvalidArgument>([&] { FSDP(net, group); });
    EXPECT_THAT(message, HasSubstr("'bias' is on the meta device and 'weight' is not"));
    EXPECT_EQ(net->weight.shape(), (Shape{4, 4}));
  });
}

TEST(FsdpMeta, RanksThatWouldDrawOtherNumbersAreRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    manual_seed(static_cast<std::uint64_t>(1 + group->rank()));
    const auto net = std::make_shared<Net>(3, Device::meta());
    EXPECT_THAT(message_of<MismatchError>([&] { FSDP(net, group); }), HasSubstr("init_generator"));
  });
}

TEST(FsdpMeta, WithoutSyncAllRanksMustBeOnMeta) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto device = group->rank() == 0 ? Device::cpu() : Device::meta();
    const auto net = std::make_shared<Net>(3, device);
    EXPECT_THROW(FSDP(net, group), MismatchError);
  });
}

// Used before anything gave it values.
TEST(FsdpMeta, Row58AnIgnoredParameterThatNobodySendsIsNamed) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto device = group->rank() == 0 ? Device::cpu() : Device::meta();
    const auto net = std::make_shared<Net>(3, device);
    const FSDPOptions options{.sync_module_states = true, .ignored_parameters = {"first.bias"}};
    if (group->rank() == 0) {
      EXPECT_THROW(FSDP(net, group, options), RemoteError);
      EXPECT_EQ(net->first->weight.shape(), (Shape{3, 8}));
    } else {
      EXPECT_THAT(message_of<InvalidArgument>([&] { FSDP(net, group, options); }),
                  HasSubstr("'first.bias' is ignored"));
    }
    EXPECT_EQ(group->failure(), nullptr);
  });
}

}  // namespace
}  // namespace cohort
