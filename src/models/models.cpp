#include "cohort/models/models.h"

#include <charconv>
#include <system_error>

#include "cohort/core/error.h"
#include "cohort/nn/activation.h"
#include "cohort/nn/conv.h"
#include "cohort/nn/linear.h"
#include "cohort/nn/norm.h"

namespace cohort::models {

std::vector<std::int64_t> parse_widths(std::string_view spec) {
  std::vector<std::int64_t> widths;
  const char* next = spec.data();
  const char* const end = spec.data() + spec.size();
  bool good = true;
  while (good) {
    std::int64_t width = 0;
    const auto [stop, error] = std::from_chars(next, end, width);
    good = error == std::errc() && width > 0;
    widths.push_back(width);
    if (stop == end) break;
    good = good && *stop == '-';
    next = stop + 1;
  }
  check(good && widths.size() >= 2, "[make_mlp] '", spec,
        "' is not a list of layer widths like 784-2048-10: two or more positive integers");
  return widths;
}

std::shared_ptr<nn::Sequential> make_mlp(std::string_view spec, const ModelOptions& options) {
  const std::vector<std::int64_t> widths = parse_widths(spec);
  auto model = std::make_shared<nn::Sequential>();
  model->push_back(nn::Flatten());
  for (std::size_t i = 1; i < widths.size(); ++i) {
    if (i > 1) model->push_back(nn::ReLU());
    model->push_back(
        nn::Linear(widths[i - 1], widths[i], {.dtype = options.dtype, .device = options.device}));
  }
  return model;
}

std::shared_ptr<nn::Sequential> make_fashion_cnn(const FashionCnnOptions& options) {
  const std::int64_t wide = 2 * options.channels;
  auto model = std::make_shared<nn::Sequential>();
  const auto add_block = [&](std::int64_t in, std::int64_t out) {
    // The batch norm's own bias makes the convolution's superfluous.
    model->push_back(nn::Conv2d(in, out, 3,
                                {.padding = 1,
                                 .bias = !options.batch_norm,
                                 .dtype = options.dtype,
                                 .device = options.device}));
    if (options.batch_norm) {
      model->push_back(nn::BatchNorm2d(out, {.dtype = options.dtype, .device = options.device}));
    }
    model->push_back(nn::ReLU());
    model->push_back(nn::MaxPool2d(2));
  };
  add_block(1, options.channels);     // 28 x 28 -> 14 x 14
  add_block(options.channels, wide);  // 14 x 14 -> 7 x 7
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(wide * 7 * 7, options.classes,
                              {.dtype = options.dtype, .device = options.device}));
  return model;
}

}  // namespace cohort::models
