#include "cohort/nn/init.h"

#include <cmath>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/random.h"

namespace cohort::nn::init {
namespace {

double kaiming_deviation(const Tensor& tensor, const KaimingOptions& options) {
  const Fans fans = fans_of(tensor);
  const auto fan = static_cast<double>(options.mode == FanMode::fan_in ? fans.in : fans.out);
  return calculate_gain(options.nonlinearity, options.a) / std::sqrt(fan);
}

double xavier_deviation(const Tensor& tensor, double gain) {
  const Fans fans = fans_of(tensor);
  return gain * std::sqrt(2.0 / static_cast<double>(fans.in + fans.out));
}

// A uniform distribution over +-sqrt(3) * s has the deviation s.
void uniform_with_deviation(const Tensor& tensor, double deviation) {
  const double bound = std::sqrt(3.0) * deviation;
  uniform_(tensor, -bound, bound);
}

bool wants_numbers(const char* name, const Tensor& tensor) {
  check<DTypeError>(is_floating(tensor.dtype()), "[", name, "] cannot fill a tensor of ",
                    tensor.dtype(), " with random numbers");
  return tensor.device().type != DeviceType::meta && tensor.numel() > 0;
}

}  // namespace

Fans fans_of(const Tensor& weight) {
  check<ShapeError>(weight.rank() >= 2, "[init] the fans of shape ", weight.shape(),
                    " are not defined; it needs at least two dimensions");
  std::int64_t kernel = 1;
  for (int i = 2; i < weight.rank(); ++i) kernel *= weight.size(i);
  return {weight.size(1) * kernel, weight.size(0) * kernel};
}

double calculate_gain(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid:
      return 1;
    case Nonlinearity::tanh:
      return 5.0 / 3;
    case Nonlinearity::relu:
      return std::sqrt(2.0);
    case Nonlinearity::leaky_relu:
      return std::sqrt(2.0 / (1 + slope * slope));
    case Nonlinearity::selu:
      return 3.0 / 4;
  }
  return 1;
}

void constant_(const Tensor& tensor, double value) {
  const NoGrad no_grad;
  Tensor(tensor).fill_(value);
}

void zeros_(const Tensor& tensor) {
  constant_(tensor, 0);
}

void ones_(const Tensor& tensor) {
  constant_(tensor, 1);
}

void uniform_(const Tensor& tensor, double low, double high) {
  check(low <= high, "[uniform_] low ", low, " is above high ", high);
  if (!wants_numbers("uniform_", tensor)) return;
  const NoGrad no_grad;
  Tensor target = tensor;
  cohort::uniform_(target, low, high, Context::current().init_generator);
}

void normal_(const Tensor& tensor, double mean, double deviation) {
  check(deviation >= 0, "[normal_] deviation ", deviation, " is negative");
  if (!wants_numbers("normal_", tensor)) return;
  const NoGrad no_grad;
  Tensor target = tensor;
  cohort::normal_(target, mean, deviation, Context::current().init_generator);
}

void kaiming_uniform_(const Tensor& tensor, const KaimingOptions& options) {
  if (tensor.numel() == 0) return;
  uniform_with_deviation(tensor, kaiming_deviation(tensor, options));
}

void kaiming_normal_(const Tensor& tensor, const KaimingOptions& options) {
  if (tensor.numel() == 0) return;
  normal_(tensor, 0, kaiming_deviation(tensor, options));
}

void xavier_uniform_(const Tensor& tensor, double gain) {
  if (tensor.numel() == 0) return;
  uniform_with_deviation(tensor, xavier_deviation(tensor, gain));
}

void xavier_normal_(const Tensor& tensor, double gain) {
  if (tensor.numel() == 0) return;
  normal_(tensor, 0, xavier_deviation(tensor, gain));
}

}  // namespace cohort::nn::init
