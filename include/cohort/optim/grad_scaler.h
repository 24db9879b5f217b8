#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohort/core/tensor.h"
#include "cohort/optim/optimizer.h"

namespace cohort::optim {

// Options of GradScaler, with PyTorch's names and defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // more than 1
  double backoff_factor = 0.5;          // between 0 and 1
  std::int64_t growth_interval = 2000;  // steps in a row without overflow, before the scale grows
  bool enabled = true;                  // false: everything passes through
};

// What a checkpoint needs of a GradScaler.
struct GradScalerState {
  double scale = 0;
  std::int64_t growth_tracker = 0;
};

// Scales the loss, so that gradients in f16 do not vanish, and adapts the scale: a step whose
// gradients overflow is left out, and the scale backs off; after growth_interval good steps in a
// row it grows (Micikevicius et al., Mixed Precision Training, 2018). The interface is PyTorch's:
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                     // only for clipping
//   clip_grad_norm_(optimizer.parameters(), 1.0);   //
//   scaler.step(optimizer);
//   scaler.update();
//
// Without unscale_() the factor goes into the optimizer's own pass over memory. Several optimizers
// may share a scaler; update() comes once, after the steps of all. Under ranks use
// DistributedGradScaler (parallel/grad_scaler.h), so that all of them decide alike. Misuse is an
// InvalidArgument. Refers to optimizers between their first call and update(). Belongs to one host
// thread.
class GradScaler {
 public:
  // InvalidArgument for options that cannot be right.
  explicit GradScaler(const GradScalerOptions& options = {});
  virtual ~GradScaler() = default;
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // The loss times the scale, as f32 (f64 for f64): f16 ends at 65504.
  Tensor scale(const Tensor& loss) const;
  // Divides the gradients by the scale, and looks for infinities and NaN in the same pass. Once
  // between updates, and before step(). DTypeError for gradients in f16, where quotients vanish:
  // keep the parameters in f32.
  void unscale_(Optimizer& optimizer);
  // Steps the optimizer, with gradients divided by the scale, unless one of them is infinite or
  // NaN. Returns whether it did. Waits for the device. Once between updates. InvalidArgument when
  // no parameter has a gradient.
  bool step(Optimizer& optimizer);
  // Adapts the scale, or sets it to `new_scale`, and begins the next step. InvalidArgument when
  // neither unscale_() nor step() was called since the last one.
  void update(std::optional<double> new_scale = {});

  double get_scale() const { return options_.enabled ? scale_ : 1; }
  bool is_enabled() const { return options_.enabled; }
  GradScalerState state() const { return {scale_, growth_tracker_}; }
  // InvalidArgument for a scale that is not positive and finite, or a negative count.
  void load_state(const GradScalerState& state);

 protected:
  // What was seen in one optimizer's gradients; the larger one wins where several are combined.
  enum class Verdict : int { no_gradients = -1, finite = 0, overflow = 1 };
  // Makes one verdict of those of all who must decide alike.
  virtual Verdict agree(Verdict mine) { return mine; }

 private:
  struct Progress {
    Verdict verdict = Verdict::finite;
    bool unscaled = false;
    bool stepped = false;
  };

  // Looks at the gradients, multiplies them by `factor`, and notes what was found.
  Progress& inspect(Optimizer& optimizer, double factor);

  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::unordered_map<const Optimizer*, Progress> progress_;  // since the last update
};

}  // namespace cohort::optim
