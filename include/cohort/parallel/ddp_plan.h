#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "cohort/core/dtype.h"

namespace cohort {

// What one step of DDP will do, known before it runs. Bytes per rank.
struct DDPPlan {
  struct Bucket {
    DType dtype = DType::f32;
    std::int64_t elements = 0;  // padding to 64 bytes per parameter included
    std::int64_t bytes = 0;
    std::vector<std::string> parameters;  // in the order of the bucket
  };

  int world_size = 1;
  std::vector<Bucket> buckets;  // in the order they are reduced
  // Collectives of a step: one all-reduce per bucket, and the broadcasts of buffers.
  std::int64_t all_reduces = 0;
  std::int64_t broadcasts = 0;
  // Logical bytes: what the collectives are called with. Exchanged bytes: the
  // least that a rank must send to others for that, of an all-reduce 2 (W - 1) / W.
  std::int64_t logical_bytes = 0;
  std::int64_t exchanged_bytes = 0;

  std::int64_t parameter_bytes = 0;
  std::int64_t gradient_bytes = 0;  // beside the buckets: 0 when gradients are views of them
  std::int64_t bucket_bytes = 0;
  std::int64_t optimizer_bytes = 0;  // 0 when the plan was made without the optimizer
};

// As a table.
std::ostream& operator<<(std::ostream& out, const DDPPlan& plan);

}  // namespace cohort
