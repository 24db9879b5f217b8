#include "backend/backend.h"

namespace cohort::backend {

const Backend& backend_for(DeviceType type) {
  switch (type) {
    case DeviceType::cuda:
      return cuda_backend();
    case DeviceType::meta:
      return meta_backend();
    case DeviceType::cpu:
      break;
  }
  return cpu_backend();
}

View broadcast_view(const Tensor& tensor, const Shape& shape) {
  View view(tensor);
  if (view.shape == shape) return view;
  Dims strides = Dims::filled(shape.size(), 0);
  const int shift = shape.size() - view.shape.size();
  for (int i = 0; i < view.shape.size(); ++i) {
    strides[i + shift] = view.shape[i] == 1 ? 0 : view.strides[i];
  }
  view.shape = shape;
  view.strides = strides;
  view.numel = shape.product();
  view.contiguous = false;
  return view;
}

}  // namespace cohort::backend
