#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/dtype.h"

namespace cohort {

// What the ranks' gradients become. The loss of each rank is
//   mean: a mean over its own samples, of which all ranks have equally many;
//   sum: a share of one sum;
//   count: a sum over its own samples or tokens, of which DDP::count() tells the number; the sum of
//     all ranks' gradients is divided by the sum of their counts.
enum class ReducePolicy : std::uint8_t { mean, sum, count };
std::string_view name(ReducePolicy policy);
std::ostream& operator<<(std::ostream& out, ReducePolicy policy);

// Dtypes of a forward, where they differ from the parameters'. The parameters themselves, the
// gradients that the optimizer sees, and its state keep their dtype.
struct MixedPrecision {
  // Forward and backward compute with copies of the parameters, and floating inputs, in this dtype.
  std::optional<DType> param_dtype = {};
  // Gradients travel in this dtype.
  std::optional<DType> reduce_dtype = {};
  // Floating buffers are converted to this dtype, for good.
  std::optional<DType> buffer_dtype = {};
  // False: inputs are left as they are.
  bool cast_forward_inputs = true;
};

// Options of DDP, with PyTorch's names and defaults where it has them. All ranks must give the same
// ones; construction compares them.
struct DDPOptions {
  // A bucket holds at most this many MiB of gradients, unless one module alone has more.
  double bucket_cap_mb = 25;
  // Cap of the bucket that is ready last, in MiB: its reduction is the one that backward cannot
  // hide, so it is kept small. 0 treats it like the others.
  double last_bucket_cap_mb = 1;
  // True: gradients live in the buckets and are reduced there. False: each parameter keeps a
  // gradient of its own, which is copied into its bucket and back. Parameters whose gradients
  // travel in another dtype are copied in any case.
  bool gradient_as_bucket_view = false;
  // True: a parameter that backward does not reach counts as zero on this rank. One that no rank's
  // backward reaches keeps the gradient it had. False: it is an error that names it.
  bool find_unused_parameters = false;
  // True: the set of parameters that a rank's backward reaches is learned in the first synchronised
  // backward, and is the same in all later ones; another set is an error that names the difference.
  // With it, find_unused_parameters has no effect.
  bool static_graph = false;
  // Rank 0's buffers replace the others' before each forward that will synchronise gradients, in
  // training mode only: evaluation starts no collective.
  bool broadcast_buffers = true;
  // False: nothing is broadcast at construction; the caller answers for equal replicas.
  bool init_sync = true;
  ReducePolicy reduce_policy = ReducePolicy::mean;
  MixedPrecision mixed_precision = {};
  // Names of parameters and buffers that DDP leaves alone: neither compared, broadcast nor reduced.
  std::vector<std::string> ignored = {};
  // False: all buckets are reduced after backward instead of during it. For measuring.
  bool overlap = true;
  // True: buckets are filled from the last registered parameter to the first, the order in which
  // most models' gradients arrive. False: from the first. For measuring.
  bool reverse_registration = true;
  // Rebuild the buckets once, after the first synchronised backward, by order of arrival.
  bool rebuild_buckets = true;
};

}  // namespace cohort
