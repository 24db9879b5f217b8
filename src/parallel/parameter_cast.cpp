#include "parallel/parameter_cast.h"

#include <utility>

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
  if (++depth_ > 1) return;
  std::vector<Tensor> copies;
  try {
    for (const Tensor& parameter : parameters_) copies.push_back(parameter.to(dtype_));
    copies_ = std::move(copies);
  } catch (...) {
    --depth_;
    throw;
  }
  swap_all();
  ++Context::current().stand_ins;
}

void ParameterCast::restore() noexcept {
  if (depth_ == 0 || --depth_ > 0) return;
  swap_all();
  --Context::current().stand_ins;
  copies_.clear();
}

void ParameterCast::swap_all() noexcept {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    TensorImpl& parameter = *parameters_[i].impl();
    TensorImpl& copy = *copies_[i].impl();
    parameter.swap_view(copy);
    std::swap(parameter.autograd, copy.autograd);
  }
}

}  // namespace cohort::parallel
