#include "cohort/autograd/gradcheck.h"

#include <cmath>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"

namespace cohort {
namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Weights of the outputs: fixed, positive and negative, so that no error cancels by symmetry.
std::vector<Tensor> make_weights(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> weights;
  Generator generator(20250101);
  for (const Tensor& output : outputs) {
    const auto count = static_cast<std::uint64_t>(output.numel());
    const PhiloxState state = generator.reserve(count);
    std::vector<double> values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      values[i] = 2.0 * uniform_from_bits(state.bits(i)) - 1.0;
    }
    weights.push_back(Tensor::from(values, output.shape()));
  }
  return weights;
}

double weighted_sum(const std::vector<Tensor>& outputs, const std::vector<Tensor>& weights) {
  double total = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<double> values = outputs[i].to_vector<double>();
    const std::vector<double> factors = weights[i].to_vector<double>();
    for (std::size_t k = 0; k < values.size(); ++k) total += values[k] * factors[k];
  }
  return total;
}

// d(weighted sum) / d(input[element]) by a central difference.
double numeric_derivative(const Function& function, const std::vector<Tensor>& inputs,
                          std::size_t input, std::int64_t element,
                          const std::vector<Tensor>& weights, double step) {
  const NoGrad no_grad;
  const std::vector<double> original = inputs[input].to_vector<double>();
  const auto evaluate = [&](double shift) {
    std::vector<double> moved = original;
    moved[static_cast<std::size_t>(element)] += shift;
    std::vector<Tensor> changed = inputs;
    // Written through the input's own strides, so that views keep their layout.
    Tensor target = Tensor(inputs[input]).detach();
    target.copy_(Tensor::from(moved, target.shape()));
    changed[input] = target;
    const double value = weighted_sum(function(changed), weights);
    target.copy_(Tensor::from(original, target.shape()));
    return value;
  };
  return (evaluate(step) - evaluate(-step)) / (2 * step);
}

}  // namespace

void gradcheck(const Function& function, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options) {
  std::vector<Tensor> wanted;
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    check<DTypeError>(inputs[i].dtype() == DType::f64, "[gradcheck] input ", i, " is ",
                      inputs[i].dtype(), "; differences need f64");
    wanted.push_back(inputs[i]);
    positions.push_back(i);
  }
  check(!wanted.empty(), "[gradcheck] no input requires a gradient");
  const std::vector<Tensor> outputs = function(inputs);
  const std::vector<Tensor> weights = make_weights(outputs);
  const std::vector<Tensor> analytic = grad(outputs, wanted, weights);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<double> values =
        analytic[i].defined() ? analytic[i].to_vector<double>()
                              : std::vector<double>(static_cast<std::size_t>(wanted[i].numel()));
    for (std::int64_t k = 0; k < wanted[i].numel(); ++k) {
      const double numeric =
          numeric_derivative(function, inputs, positions[i], k, weights, options.step);
      const double value = values[static_cast<std::size_t>(k)];
      // Written so that a NaN on either side fails.
      const bool close =
          std::abs(value - numeric) <= options.absolute + options.relative * std::abs(numeric);
      check<AutogradError>(close, "[gradcheck] input ", positions[i], " of shape ",
                           wanted[i].shape(), ", element ", k, ": the derivative is ", value,
                           " by backward and ", numeric, " by differences");
    }
  }
}

}  // namespace cohort
