#include "parallel/parameter_cast.h"

#include "cohort/core/context.h"

namespace cohort::parallel {

ParameterCast::ParameterCast(const std::vector<Tensor>& parameters, DType dtype) : dtype_(dtype) {
  for (const Tensor& parameter : parameters) {
    if (is_floating(parameter.dtype()) && parameter.dtype() != dtype) {
      parameters_.push_back(parameter);
    }
  }
}

void ParameterCast::exchange() {
  restore();
  exchanged_.reserve(parameters_.size());
  std::vector<Tensor> copies;
  copies.reserve(parameters_.size());
  for (const Tensor& parameter : parameters_) copies.push_back(parameter.to(dtype_));
  // Nothing throws from here on: all are exchanged, or none.
  for (std::size_t i = 0; i < copies.size(); ++i) {
    parameters_[i].impl()->swap_contents(*copies[i].impl());
    exchanged_.emplace_back(parameters_[i], std::move(copies[i]));
  }
}

void ParameterCast::restore() noexcept {
  for (auto& [parameter, contents] : exchanged_) {
    parameter.impl()->swap_contents(*contents.impl());
  }
  exchanged_.clear();
}

}  // namespace cohort::parallel
