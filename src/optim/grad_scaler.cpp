#include "cohort/optim/grad_scaler.h"

#include <algorithm>
#include <limits>

#include "backend/backend.h"
#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/cast.h"
#include "cohort/ops/elementwise.h"

namespace cohort::optim {
namespace {

// Kernels work in f32: a larger scale would be an infinity to them.
bool usable(double scale) {
  return scale > 0 && scale <= static_cast<double>(std::numeric_limits<float>::max());
}

// Whether a gradient is infinite or NaN; multiplies all by `factor`. One pass over memory each, and
// one wait per device for all of them.
bool any_nonfinite(const std::vector<Tensor>& params, double factor) {
  std::vector<Tensor> flags;
  for (const Tensor& param : params) {
    Tensor gradient = param.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const Device device = gradient.device();
    if (flags.empty() || flags.back().device() != device) {
      flags.push_back(Tensor::zeros({1}, {.dtype = i32, .device = device}));
    }
    const Tensor dense = gradient.contiguous();
    backend::backend_for(device.type)
        .optim()
        .unscale(Context::current().stream(device), flags.back(), dense, factor);
    if (factor == 1) continue;
    if (dense.is_same(gradient)) {
      gradient.storage().bump_version();
    } else {
      gradient.copy_(dense);
    }
  }
  bool found = false;
  for (const Tensor& flag : flags) found |= flag.item<std::int32_t>() != 0;
  return found;
}

bool has_gradient(const std::vector<Tensor>& params) {
  for (const Tensor& param : params) {
    if (param.grad().defined()) return true;
  }
  return false;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(options.init_scale) {
  check(usable(options.init_scale), "[GradScaler] init_scale is ", options.init_scale,
        "; it must be positive and finite in f32");
  check(options.growth_factor > 1, "[GradScaler] growth_factor is ", options.growth_factor,
        "; it must be more than 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "[GradScaler] backoff_factor is ",
        options.backoff_factor, "; it must lie between 0 and 1");
  check(options.growth_interval >= 1, "[GradScaler] growth_interval is ", options.growth_interval,
        "; it must be at least 1");
}

Tensor GradScaler::scale(const Tensor& loss) const {
  if (!options_.enabled) return loss;
  return mul(loss.to(loss.dtype() == f64 ? f64 : f32), scale_);
}

GradScaler::Progress& GradScaler::inspect(Optimizer& optimizer, double factor) {
  const NoGrad no_grad;
  const std::vector<Tensor> params = optimizer.parameters();
  Verdict mine = Verdict::no_gradients;
  if (has_gradient(params)) {
    mine = any_nonfinite(params, factor) ? Verdict::overflow : Verdict::finite;
  }
  const Verdict verdict = agree(mine);
  check(verdict != Verdict::no_gradients,
        "[GradScaler] no parameter of the optimizer has a gradient; call backward() first");
  Progress& progress = progress_[&optimizer];
  progress.verdict = verdict;
  return progress;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  const auto found = progress_.find(&optimizer);
  if (found != progress_.end()) {
    check(!found->second.stepped, "[GradScaler] unscale_() comes after step()");
    check(!found->second.unscaled,
          "[GradScaler] unscale_() was called on this optimizer already since the last update()");
  }
  for (const Tensor& param : optimizer.parameters()) {
    check<DTypeError>(!param.grad().defined() || param.grad().dtype() != f16,
                      "[GradScaler] unscale_() would lose small gradients in f16; keep the "
                      "parameters in f32 (mixed_precision), or leave unscale_() out");
  }
  inspect(optimizer, 1 / scale_).unscaled = true;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  const auto found = progress_.find(&optimizer);
  check(found == progress_.end() || !found->second.stepped,
        "[GradScaler] step() was called on this optimizer already since the last update()");
  const bool unscaled = found != progress_.end() && found->second.unscaled;
  Progress& progress = unscaled ? found->second : inspect(optimizer, 1);
  progress.stepped = true;
  if (progress.verdict == Verdict::overflow) return false;
  optimizer.step(unscaled ? 1 : 1 / scale_);
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check(usable(*new_scale), "[GradScaler] the new scale is ", *new_scale,
          "; it must be positive and finite in f32");
    scale_ = *new_scale;
    progress_.clear();
    return;
  }
  check(!progress_.empty(),
        "[GradScaler] update() without a step() or unscale_() since the last one");
  bool overflow = false;
  for (const auto& [optimizer, progress] : progress_) {
    overflow |= progress.verdict == Verdict::overflow;
  }
  progress_.clear();
  if (overflow) {
    // Not below what a float can say: a run of overflows must not end in a scale of zero.
    scale_ = std::max(scale_ * options_.backoff_factor,
                      static_cast<double>(std::numeric_limits<float>::min()));
    growth_tracker_ = 0;
    return;
  }
  if (++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  if (usable(scale_ * options_.growth_factor)) scale_ *= options_.growth_factor;
}

void GradScaler::load_state(const GradScalerState& state) {
  check(usable(state.scale) && state.growth_tracker >= 0, "[GradScaler] cannot load a scale of ",
        state.scale, " and a count of ", state.growth_tracker);
  scale_ = state.scale;
  growth_tracker_ = state.growth_tracker;
  progress_.clear();
}

}  // namespace cohort::optim
