#include "cohort/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"

namespace cohort::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// y = x * scale, with a buffer and an absent bias.
class Scale : public ModuleOf<Scale> {
 public:
  explicit Scale(float start, const TensorOptions& options = {}) {
    scale = register_parameter("scale", Tensor::full({2}, start, options));
    register_parameter("bias", Tensor());
    count = register_buffer("count", Tensor::zeros({}, {.dtype = i64, .device = options.device}));
    scratch = register_buffer("scratch", Tensor::zeros({2}, options), /*persistent=*/false);
  }
  Tensor forward(const Tensor& x) { return x * scale; }

  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;

  Tensor scale;
  Tensor count;
  Tensor scratch;
};

class Tree : public ModuleOf<Tree> {
 public:
  Tree() { register_module("again", std::shared_ptr<Scale>(left)); }
  // Arguments of several kinds; the number of calls is kept by reference.
  Tensor forward(const Tensor& x, double factor, int& calls) {
    ++calls;
    return right(left(x)) * factor + own;
  }
  Tensor own = register_parameter("own", Tensor::zeros({2}));
  Child<Scale> left = make_module<Scale>("left", 2.f);
  Child<Scale> right = make_module<Scale>("right", 3.f);
};

std::vector<std::string> names(const std::vector<NamedTensor>& named) {
  std::vector<std::string> result;
  for (const NamedTensor& entry : named) result.push_back(entry.name);
  return result;
}

std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Module, NamesStateWithDotsInOrderOfRegistrationAndListsSharedModulesOnce) {
  Tree tree;
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("own", "left.scale", "right.scale"));
  EXPECT_THAT(names(tree.named_parameters(/*recurse=*/false)), ElementsAre("own"));
  EXPECT_THAT(names(tree.named_buffers()),
              ElementsAre("left.count", "left.scratch", "right.count", "right.scratch"));
  EXPECT_THAT(names(tree.named_state()),
              ElementsAre("own", "left.scale", "right.scale", "left.count", "right.count"));
  std::vector<std::string> modules;
  for (const NamedModule& entry : tree.named_modules()) modules.push_back(entry.name);
  EXPECT_THAT(modules, ElementsAre("", "left", "right"));
  EXPECT_EQ(tree.named_children().size(), 3u);
  EXPECT_EQ(tree.parameters().size(), 3u);
}

TEST(Module, ListsATiedParameterOnceUnderItsFirstName) {
  Tree tree;
  tree.right->register_parameter("tied", tree.left->scale);
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("own", "left.scale", "right.scale"));
}

TEST(Module, RefusesNamesThatAreEmptyDottedOrTaken) {
  Scale module(1);
  const Tensor tensor = Tensor::zeros({1});
  EXPECT_THAT(error_text([&] { module.register_parameter("", tensor); }), HasSubstr("empty"));
  EXPECT_THAT(error_text([&] { module.register_parameter("a.b", tensor); }), HasSubstr("'a.b'"));
  EXPECT_THAT(error_text([&] { module.register_parameter("count", tensor); }),
              HasSubstr("'count' is taken"));
  EXPECT_THAT(error_text([&] { module.register_parameter("bias", tensor); }),
              HasSubstr("'bias' is taken"));
  EXPECT_THAT(error_text([&] { module.register_buffer("scale", tensor); }),
              HasSubstr("'scale' is taken"));
  EXPECT_THAT(error_text([&] { module.register_module("scale", std::make_shared<Scale>(1.f)); }),
              HasSubstr("'scale' is taken"));
  EXPECT_THAT(error_text([&] { module.register_module("x", std::shared_ptr<Scale>()); }),
              HasSubstr("'x' is null"));
}

TEST(Module, ANonFloatingParameterThatWantsAGradientIsAnError) {
  Scale module(1);
  const Tensor integers = Tensor::zeros({3}, {.dtype = i64});
  EXPECT_THAT(error_text([&] { module.register_parameter("steps", integers); }),
              testing::AllOf(HasSubstr("'steps' is i64"), HasSubstr("requires_grad false")));
  EXPECT_NO_THROW(module.register_parameter("steps", integers, /*requires_grad=*/false));
  EXPECT_THAT(error_text([&] { module.requires_grad_(); }), HasSubstr("'steps' is i64"));
}

TEST(Module, CallsForwardWithAnySignature) {
  Tree tree;
  int calls = 0;
  const Tensor y = tree(Tensor::ones({2}), 0.5, calls);
  EXPECT_THAT(y.to_vector<float>(), ElementsAre(3, 3));
  EXPECT_EQ(calls, 1);
}

TEST(Module, TrainAndEvalReachTheWholeTree) {
  Tree tree;
  EXPECT_TRUE(tree.right->is_training());
  tree.eval();
  EXPECT_FALSE(tree.is_training() || tree.right->is_training());
  tree.train();
  EXPECT_TRUE(tree.is_training() && tree.right->is_training());
}

TEST(Module, ApplyVisitsChildrenFirstAndEachOnce) {
  Tree tree;
  std::vector<Module*> seen;
  tree.apply([&](Module& module) { seen.push_back(&module); });
  EXPECT_THAT(seen, ElementsAre(tree.left.get(), tree.right.get(), &tree));
}

TEST(Module, ConvertsDtypeInPlaceWithGradients) {
  Tree tree;
  const Tensor before = tree.left->scale;
  int calls = 0;
  sum(tree(Tensor::ones({2}), 1, calls)).backward();
  tree.to(f64);
  EXPECT_TRUE(tree.parameters()[1].is_same(before));
  EXPECT_EQ(before.dtype(), f64);
  EXPECT_EQ(before.grad().dtype(), f64);
  EXPECT_THAT(before.grad().to_vector<double>(), ElementsAre(3, 3));
  EXPECT_EQ(tree.left->scratch.dtype(), f64);
  EXPECT_EQ(tree.left->count.dtype(), i64) << "integers keep their dtype";
  EXPECT_TRUE(before.requires_grad());
  tree.zero_grad();
  sum(tree(Tensor::ones({2}, {.dtype = f64}), 1, calls)).backward();
  EXPECT_THAT(before.grad().to_vector<double>(), ElementsAre(3, 3));
  EXPECT_THROW(tree.to(i32), DTypeError);
}

TEST(Module, AMetaModelComesToLifeUnderTheSameHandles) {
  const Device meta = Device::meta();
  Scale module(1, {.device = meta});
  const Tensor before = module.scale;
  EXPECT_EQ(before.device(), meta);
  module.to_empty(Device::cpu());
  EXPECT_EQ(before.device(), Device::cpu());
  EXPECT_EQ(module.count.device(), Device::cpu());
  {
    const NoGrad no_grad;
    module.scale.fill_(4);
  }
  EXPECT_THAT(module(Tensor::ones({2})).to_vector<float>(), ElementsAre(4, 4));
}

TEST(Module, RefusesToConvertWhenGradientsHaveAFixedPlace) {
  Tree tree;
  set_grad_destination(tree.own, Tensor::zeros({2}));
  EXPECT_THAT(error_text([&] { tree.to(f64); }), HasSubstr("'own'"));
  EXPECT_EQ(tree.left->scale.dtype(), f32);
}

TEST(Module, ClearsOrZeroesGradients) {
  Tree tree;
  int calls = 0;
  const auto run = [&] { sum(tree(Tensor::ones({2}), 1, calls)).backward(); };
  run();
  const Tensor gradient = tree.own.grad();
  tree.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(tree.own.grad().is_same(gradient));
  EXPECT_THAT(gradient.to_vector<float>(), ElementsAre(0, 0));
  tree.zero_grad();
  EXPECT_FALSE(tree.own.grad().defined());
}

TEST(Module, FreezesAndUnfreezesParameters) {
  Tree tree;
  tree.requires_grad_(false);
  EXPECT_FALSE(tree.left->scale.requires_grad());
  tree.requires_grad_();
  EXPECT_TRUE(tree.left->scale.requires_grad());
}

TEST(ForwardHooks, SeeTheModuleItsInputsAndItsOutputsInOrder) {
  Tree tree;
  std::vector<std::string> log;
  const auto logger = [&](const char* what) {
    return [&log, what](Module&, std::span<Tensor> tensors) {
      log.push_back(str(what, ":", tensors.size(), ":", tensors[0].to_vector<float>()[0]));
    };
  };
  tree.register_forward_pre_hook(logger("pre"));
  tree.left->register_forward_pre_hook(logger("left pre"));
  tree.left->register_forward_hook(logger("left post 1"));
  tree.left->register_forward_hook(logger("left post 2"));
  tree.register_forward_hook(logger("post"));
  int calls = 0;
  tree(Tensor::ones({2}), 1, calls);
  EXPECT_EQ(calls, 1) << "an argument by reference is the caller's own";
  EXPECT_THAT(log, ElementsAre("pre:1:1", "left pre:1:1", "left post 1:1:2", "left post 2:1:2",
                               "post:1:6"));
}

TEST(ForwardHooks, ReplaceWhatForwardGetsAndNotTheCallersVariables) {
  Tree tree;
  tree.register_forward_pre_hook(
      [](Module&, std::span<Tensor> inputs) { inputs[0] = inputs[0] * 10; });
  tree.register_forward_hook(
      [](Module&, std::span<Tensor> outputs) { outputs[0] = outputs[0] + Tensor::ones({2}); });
  int calls = 0;
  Tensor x = Tensor::ones({2});
  EXPECT_THAT(tree(x, 1, calls).to_vector<float>(), ElementsAre(61, 61));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 1));
  EXPECT_THAT(tree(Tensor::ones({2}), 1, calls).to_vector<float>(), ElementsAre(61, 61));
}

TEST(ForwardHooks, ComputeGradientsThroughAnInsertedOperation) {
  Scale module(3);
  module.register_forward_hook(
      [](Module&, std::span<Tensor> outputs) { outputs[0] = outputs[0] * 2; });
  sum(module(Tensor::ones({2}))).backward();
  EXPECT_THAT(module.scale.grad().to_vector<float>(), ElementsAre(2, 2));
}

TEST(ForwardHooks, ErrorHooksRunWhereForwardOrAHookThrowsFromTheInsideOut) {
  struct Throws : ModuleOf<Throws> {
    bool bad = false;
    Tensor forward(const Tensor& x) {
      if (bad) throw std::range_error("in forward");
      return x;
    }
  };
  struct Outer : ModuleOf<Outer> {
    Child<Throws> inner = make_module<Throws>("inner");
    Tensor forward(const Tensor& x) { return inner(x); }
    Tensor other(const Tensor& x) { return inner(x); }
  };
  Outer outer;
  std::vector<std::string> log;
  outer.register_forward_error_hook([&](Module&) { log.push_back("outer"); });
  outer.inner->register_forward_error_hook([&](Module&) { log.push_back("inner"); });
  const Tensor x = Tensor::ones({2});
  outer(x);
  EXPECT_TRUE(log.empty());
  outer.inner->bad = true;
  EXPECT_THROW(outer(x), std::range_error);
  EXPECT_THAT(log, ElementsAre("inner", "outer"));
  log.clear();
  EXPECT_THROW(outer.invoke(&Outer::other, x), std::range_error);
  EXPECT_THAT(log, ElementsAre("inner", "outer"));
  log.clear();
  outer.inner->bad = false;
  HookHandle refuses = outer.register_forward_pre_hook(
      [](Module&, std::span<Tensor>) { throw std::range_error("in a hook"); });
  EXPECT_THROW(outer(x), std::range_error);
  EXPECT_THAT(log, ElementsAre("outer"));
  EXPECT_THROW(outer.register_forward_error_hook(nullptr), InvalidArgument);
}

TEST(ForwardHooks, MayBeRemovedFromWithinAHookAndAfterTheModuleIsGone) {
  auto module = std::make_unique<Scale>(1.f);
  int runs = 0;
  HookHandle handle;
  handle = module->register_forward_hook([&](Module&, std::span<Tensor>) {
    ++runs;
    handle.remove();
  });
  (*module)(Tensor::ones({2}));
  (*module)(Tensor::ones({2}));
  EXPECT_EQ(runs, 1);
  HookHandle late = module->register_forward_pre_hook([](Module&, std::span<Tensor>) {});
  module.reset();
  EXPECT_NO_THROW(late.remove());
}

// Takes and returns structured values.
struct State {
  Tensor hidden;
  std::vector<Tensor> cells;
  static constexpr auto tensor_fields = std::tuple{&State::hidden, &State::cells};
};

class Recurrent : public ModuleOf<Recurrent> {
 public:
  std::pair<Tensor, State> forward(std::unique_ptr<int> steps, const State& state) {
    return {state.hidden * static_cast<double>(*steps), state};
  }
  void forward(State& state) { state.cells.push_back(state.hidden); }
};

}  // namespace

template <>
inline constexpr auto tensor_fields_of<std::unique_ptr<int>> = std::tuple{};

namespace {

TEST(ForwardHooks, TraverseStructsAndPassMoveOnlyArguments) {
  Recurrent module;
  std::vector<std::size_t> counts;
  const auto count = [&](Module&, std::span<Tensor> tensors) { counts.push_back(tensors.size()); };
  module.register_forward_pre_hook(count);
  module.register_forward_hook(count);
  State state{Tensor::ones({1}), {Tensor::ones({1}), Tensor::ones({1})}};
  const auto [y, next] = module(std::make_unique<int>(5), state);
  EXPECT_EQ(y.item<float>(), 5);
  EXPECT_THAT(counts, ElementsAre(3u, 4u));
  module(state);
  EXPECT_EQ(state.cells.size(), 3u) << "forward changed its caller's state through a reference";
  EXPECT_THAT(counts, ElementsAre(3u, 4u, 3u, 0u));
}

TEST(Module, CountsParametersUnderTheirCategoryAfterConversion) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  Tree tree;
  tree.to(f64);
  const auto live = memory_stats().live[static_cast<std::size_t>(MemoryCategory::parameters)];
  // Three parameters, two scratch and two count buffers, 64 bytes each.
  EXPECT_EQ(live, 5 * 64);
}

}  // namespace
}  // namespace cohort::nn
