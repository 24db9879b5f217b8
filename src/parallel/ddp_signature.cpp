#include "parallel/ddp_signature.h"

#include <algorithm>
#include <ostream>
#include <sstream>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"

namespace cohort {

std::string_view name(ReducePolicy policy) {
  switch (policy) {
    case ReducePolicy::mean:
      return "mean";
    case ReducePolicy::sum:
      return "sum";
    case ReducePolicy::count:
      return "count";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, ReducePolicy policy) {
  return out << name(policy);
}

}  // namespace cohort

namespace cohort::parallel {
namespace {

std::string dtype_or_same(const std::optional<DType>& dtype) {
  return dtype ? str(*dtype) : std::string("unchanged");
}

void check_dtype(const char* option, const std::optional<DType>& dtype) {
  if (!dtype) return;
  check<DTypeError>(is_floating(*dtype), "[DDP] mixed_precision.", option,
                    " must be a floating dtype, got ", *dtype);
}

std::string layout_of(const Tensor& tensor) {
  return tensor.is_contiguous() ? std::string() : str(" with strides ", tensor.strides());
}

}  // namespace

void check_options(const nn::Module& module, const DDPOptions& options) {
  // Written so that a NaN fails.
  check(options.bucket_cap_mb > 0, "[DDP] bucket_cap_mb must be positive, got ",
        options.bucket_cap_mb);
  check(options.last_bucket_cap_mb >= 0, "[DDP] last_bucket_cap_mb must not be negative, got ",
        options.last_bucket_cap_mb);
  check_dtype("param_dtype", options.mixed_precision.param_dtype);
  check_dtype("reduce_dtype", options.mixed_precision.reduce_dtype);
  check_dtype("buffer_dtype", options.mixed_precision.buffer_dtype);
  std::vector<nn::NamedTensor> named = module.named_parameters();
  for (nn::NamedTensor& buffer : module.named_buffers()) named.push_back(std::move(buffer));
  for (const auto& [name, tensor] : named) {
    check<NotSupported>(tensor.device().type != DeviceType::meta, "[DDP] '", name,
                        "' is on the meta device; bring the model to life with to_empty(device) "
                        "before wrapping it");
    check<AutogradError>(grad_manager(tensor).empty(), "[DDP] the gradient of '", name,
                         "' is managed by ", grad_manager(tensor),
                         " already; wrap a module once, or destroy the first wrapper before");
  }
  for (const std::string& ignored : options.ignored) {
    check(std::any_of(named.begin(), named.end(),
                      [&](const nn::NamedTensor& entry) { return entry.name == ignored; }),
          "[DDP] ignored names '", ignored, "', which is no parameter or buffer of the module");
  }
}

std::vector<std::string> signature(const std::vector<nn::NamedTensor>& parameters,
                                   const std::vector<nn::NamedTensor>& buffers,
                                   const DDPOptions& options) {
  std::vector<std::string> lines;
  std::ostringstream flags;
  flags << "options: bucket_cap_mb " << options.bucket_cap_mb << ", last_bucket_cap_mb "
        << options.last_bucket_cap_mb << ", gradient_as_bucket_view "
        << options.gradient_as_bucket_view << ", find_unused_parameters "
        << options.find_unused_parameters << ", static_graph " << options.static_graph
        << ", broadcast_buffers " << options.broadcast_buffers << ", init_sync "
        << options.init_sync << ", reduce_policy " << options.reduce_policy << ", overlap "
        << options.overlap << ", reverse_registration " << options.reverse_registration
        << ", rebuild_buckets " << options.rebuild_buckets;
  lines.push_back(flags.str());
  const MixedPrecision& precision = options.mixed_precision;
  lines.push_back(str("mixed precision: param_dtype ", dtype_or_same(precision.param_dtype),
                      ", reduce_dtype ", dtype_or_same(precision.reduce_dtype), ", buffer_dtype ",
                      dtype_or_same(precision.buffer_dtype), ", cast_forward_inputs ",
                      precision.cast_forward_inputs));
  for (const auto& [name, tensor] : parameters) {
    lines.push_back(str("parameter ", name, ": ", tensor.dtype(), tensor.shape(), layout_of(tensor),
                        tensor.requires_grad() ? ", trained" : ", frozen"));
  }
  for (const auto& [name, tensor] : buffers) {
    lines.push_back(str("buffer ", name, ": ", tensor.dtype(), tensor.shape()));
  }
  return lines;
}

}  // namespace cohort::parallel
