#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/autograd/node.h"
#include "cohort/ops/ops.h"

namespace cohort {
namespace {

Tensor leaf(std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return Tensor::from(values, {count}).set_requires_grad(true);
}

std::vector<float> grad_of(const Tensor& tensor) {
  return tensor.grad().to_vector<float>();
}

using Values = std::vector<float>;

TEST(Graph, ThatNeverRunsBackwardGoesWithItsOutputs) {
  Tensor x = Tensor::ones({8}, {.requires_grad = true});
  const auto live = [] { return memory_stats().live_total; };
  const std::int64_t before = live();
  {
    // Operations that keep their outputs.
    const Tensor y = softmax(tanh(exp(sigmoid(sqrt(relu(x) + 1.0)))), 0);
    EXPECT_GT(live(), before);
  }
  EXPECT_EQ(live(), before);
}

TEST(Backward, MultipliesAndAddsAlongThePaths) {
  const Tensor a = leaf({2, 3});
  const Tensor b = leaf({5, 7});
  sum(a * b + a).backward();
  EXPECT_EQ(grad_of(a), (Values{6, 8}));
  EXPECT_EQ(grad_of(b), (Values{2, 3}));
}

TEST(Backward, AddsUpOverSeveralCalls) {
  const Tensor a = leaf({1});
  (a * 3.0).backward();
  (a * 4.0).backward();
  EXPECT_EQ(grad_of(a), (Values{7}));
}

TEST(Backward, ALeafUsedTwiceGetsBothParts) {
  const Tensor a = leaf({3});
  (a * a).backward();
  EXPECT_EQ(grad_of(a), (Values{6}));
}

TEST(Backward, ADiamondRunsEachNodeOnce) {
  const Tensor a = leaf({2});
  const Tensor b = a * 3.0;
  const BackwardStats stats = backward_with_stats({sum(b * b + b)});
  EXPECT_EQ(grad_of(a), (Values{39}));  // d(9a^2 + 3a) = 18a + 3
  EXPECT_EQ(stats.nodes, 4);            // sum, add, mul, scale
}

TEST(Backward, AGraphOf100000NodesNeedsNoStack) {
  const Tensor a = leaf({1});
  Tensor chain = a;
  for (int i = 0; i < 100000; ++i) chain = chain + a;
  chain.backward();
  EXPECT_EQ(grad_of(a), (Values{100001}));
  // `chain` is destroyed here, without recursion too.
}

TEST(Backward, ALongGraphThatNeverRanIsDestroyedWithoutRecursion) {
  const Tensor a = leaf({1});
  Tensor chain = a;
  for (int i = 0; i < 100000; ++i) chain = chain * a;
  chain = {};
  SUCCEED();
}

TEST(Backward, WithoutARetainedGraphASecondOneIsAnError) {
  const Tensor a = leaf({1});
  const Tensor y = a * a;
  y.backward();
  try {
    y.backward();
    FAIL() << "no error";
  } catch (const AutogradError& error) {
    EXPECT_NE(std::string(error.what()).find("retain_graph"), std::string::npos);
  }
}

TEST(Backward, ARetainedGraphMayRunAgain) {
  const Tensor a = leaf({3});
  const Tensor y = a * a;
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_EQ(grad_of(a), (Values{12}));
}

TEST(Backward, ASavedTensorWrittenInPlaceIsAnError) {
  const Tensor a = leaf({3});
  Tensor b = Tensor::from<float>({2}, {1});
  const Tensor y = a * b;
  b.fill_(5);
  try {
    y.backward();
    FAIL() << "no error";
  } catch (const AutogradError& error) {
    EXPECT_NE(std::string(error.what()).find("written in place"), std::string::npos);
  }
  EXPECT_FALSE(a.grad().defined());
}

TEST(Backward, AWriteThroughAViewIsSeenToo) {
  const Tensor a = leaf({3, 3});
  const Tensor b = Tensor::ones({2});
  const Tensor y = sum(a * b);
  Tensor view = b.as_strided({1}, {1}, 1);
  view.fill_(5);
  EXPECT_THROW(y.backward(), AutogradError);
}

TEST(Backward, NeedsAScalarOrAGradientOfEqualShape) {
  const Tensor a = leaf({1, 2});
  const Tensor y = a * 2.0;
  EXPECT_THROW(y.backward(), ShapeError);
  EXPECT_THROW(y.backward(Tensor::ones({3})), ShapeError);
  EXPECT_THROW(y.backward(Tensor::ones({2}, {.dtype = f64})), DTypeError);
  y.backward(Tensor::from<float>({1, 10}, {2}));
  EXPECT_EQ(grad_of(a), (Values{2, 20}));
}

TEST(Backward, OfSomethingWithoutHistoryIsAnError) {
  EXPECT_THROW(Tensor::ones({}).backward(), AutogradError);
  const Tensor a = leaf({1});
  const NoGrad no_grad;
  const Tensor y = a * 2.0;
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THROW(y.backward(), AutogradError);
}

TEST(Backward, CreateGraphIsAClearErrorForNow) {
  const Tensor a = leaf({1});
  EXPECT_THROW(backward({a * 2.0}, {}, {.create_graph = true}), NotSupported);
}

TEST(Backward, RunsLeavesAsSoonAsTheirGradientIsThere) {
  const Tensor a = leaf({1});
  const Tensor b = leaf({1});
  std::vector<std::string> order;
  register_post_accumulate_grad_hook(a, [&](const Tensor&) { order.emplace_back("a"); });
  register_post_accumulate_grad_hook(b, [&](const Tensor&) { order.emplace_back("b"); });
  const Tensor hidden = a * 2.0;
  register_hook(hidden, [&](const Tensor&) {
    order.emplace_back("hidden");
    return Tensor();
  });
  (hidden * b).backward();
  EXPECT_EQ(order, (std::vector<std::string>{"b", "hidden", "a"}));
}

TEST(Hooks, MayReplaceTheGradientOfAnInnerTensor) {
  const Tensor a = leaf({1});
  const Tensor y = a * 2.0;
  HookHandle handle = register_hook(y, [](const Tensor& grad) { return grad * 10.0; });
  (y * 3.0).backward({}, true);
  EXPECT_EQ(grad_of(a), (Values{60}));
  handle.remove();
  Tensor(a).set_grad({});
  (y * 3.0).backward();
  EXPECT_EQ(grad_of(a), (Values{6}));
}

TEST(Hooks, OnALeafRunOnceOnTheSum) {
  const Tensor a = leaf({2});
  int calls = 0;
  register_hook(a, [&](const Tensor& grad) {
    ++calls;
    return grad + 1.0;
  });
  (a * a).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(grad_of(a), (Values{5}));
}

TEST(Hooks, AReplacementOfAnotherShapeIsAnError) {
  const Tensor a = leaf({2});
  register_hook(a, [](const Tensor&) { return Tensor::ones({3}); });
  EXPECT_THROW((a * 1.0).backward(), ShapeError);
}

TEST(Hooks, APostAccumulateHookSeesTheWholeGradient) {
  const Tensor a = leaf({2});
  Values seen;
  HookHandle handle = register_post_accumulate_grad_hook(
      a, [&](const Tensor& tensor) { seen.push_back(tensor.grad().item<float>()); });
  (a * a).backward();
  (a * 1.0).backward();
  handle.remove();
  (a * 1.0).backward();
  EXPECT_EQ(seen, (Values{4, 5}));
}

TEST(Callbacks, RunWhenAllGradientsAreThere) {
  const Tensor a = leaf({2});
  const Tensor b = leaf({3});
  Values seen;
  register_post_accumulate_grad_hook(b, [&](const Tensor&) {
    queue_callback([&] {
      seen = {grad_of(a)[0], grad_of(b)[0]};
      queue_callback([&] { seen.push_back(0); });
    });
  });
  ((a * 1.0) * b).backward();
  EXPECT_EQ(seen, (Values{3, 2, 0}));
  EXPECT_THROW(queue_callback([] {}), AutogradError);
}

TEST(Callbacks, LearnOfAFailure) {
  const Tensor a = leaf({2});
  const Tensor b = leaf({3});
  std::string message;
  register_post_accumulate_grad_hook(b, [&](const Tensor&) {
    queue_callback([&] { message = "done"; },
                   [&](const std::exception_ptr& error) {
                     try {
                       std::rethrow_exception(error);
                     } catch (const Error& caught) {
                       message = caught.what();
                     }
                   });
  });
  const Tensor inner = a * 1.0;
  register_hook(inner, [](const Tensor&) -> Tensor { throw InvalidArgument("hook failed"); });
  EXPECT_THROW((inner * b).backward(), InvalidArgument);
  EXPECT_EQ(message, "hook failed");
  // The next backward is clean.
  Tensor(a).set_grad({});
  (a * 5.0).backward();
  EXPECT_EQ(grad_of(a), (Values{5}));
}

TEST(Grad, ReturnsDerivativesAndLeavesTheLeavesAlone) {
  const Tensor a = leaf({2});
  const Tensor b = leaf({3});
  bool hooked = false;
  register_post_accumulate_grad_hook(a, [&](const Tensor&) { hooked = true; });
  const Tensor h = a * b;
  const auto grads = grad({h * h}, {a, h, leaf({1})});
  EXPECT_EQ(grads[0].to_vector<float>(), (Values{36}));
  EXPECT_EQ(grads[1].to_vector<float>(), (Values{12}));
  EXPECT_FALSE(grads[2].defined());
  EXPECT_FALSE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
  EXPECT_FALSE(hooked);
}

TEST(Backward, MayRunInsideAHookOfAnother) {
  const Tensor a = leaf({2});
  const Tensor b = leaf({3});
  const Tensor inner = a * 100.0;
  register_post_accumulate_grad_hook(b, [&](const Tensor&) { inner.backward(); });
  (a * b).backward();
  EXPECT_EQ(grad_of(a), (Values{103}));
  EXPECT_EQ(grad_of(b), (Values{2}));
}

TEST(Gradcheck, AcceptsARightGradientAndFindsAWrongOne) {
  const Tensor x = Tensor::from<double>({0.5, -1.5, 2}, {3}).set_requires_grad(true);
  gradcheck([](const auto& in) { return std::vector{in[0] * in[0]}; }, {x});
  const auto wrong = [](const std::vector<Tensor>& in) {
    const Tensor y = in[0] * 1.0;
    if (y.requires_grad()) register_hook(y, [](const Tensor& grad) { return grad * 1.01; });
    return std::vector{y * in[0]};
  };
  EXPECT_THROW(gradcheck(wrong, {x}), AutogradError);
  EXPECT_THROW(gradcheck(wrong, {leaf({1})}), DTypeError);
}

TEST(SetRequiresGrad, RefusesIntegersInnerTensorsAndLiveGraphs) {
  Tensor integers = Tensor::zeros({2}, {.dtype = i64});
  EXPECT_THROW(integers.set_requires_grad(true), DTypeError);
  Tensor a = leaf({1});
  Tensor y = a * 2.0;
  EXPECT_THROW(y.set_requires_grad(false), AutogradError);
  EXPECT_THROW(a.set_requires_grad(false), AutogradError);
  y = {};
  a.set_requires_grad(false);
  EXPECT_FALSE(a.requires_grad());
}

}  // namespace
}  // namespace cohort
