#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/dtype.h"

namespace cohort::parallel {

// What the assignment of buckets knows about a parameter.
struct BucketItem {
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  // Parameters of one module get their gradients together; consecutive ones with equal groups are
  // never split, because their bucket would not be ready any earlier.
  int group = 0;
};

struct BucketCaps {
  double bytes = 25.0 * 1024 * 1024;
  double last_bytes = 0;  // of the bucket that is ready last; 0: as the others
};

// Cuts `order`, a permutation of the items' indices in the expected order of their gradients, into
// buckets of one dtype each, in the order they will be ready.
//
// Rules: going through the order, a group joins the open bucket of its dtype while that stays
// within the cap, else it opens the next one; a group larger than the cap is a bucket of its own.
// With last_bytes, the groups at the end of the order that fit into it (at least the last one) are
// kept apart from what comes before, where what comes before is at least as large as last_bytes.
std::vector<std::vector<int>> assign_buckets(std::span<const BucketItem> items,
                                             std::span<const int> order, const BucketCaps& caps);

// Where each parameter of a bucket starts, in elements, and the bucket's size. Parameters are
// aligned to 64 bytes.
struct BucketLayout {
  std::vector<std::int64_t> offsets;
  std::int64_t elements = 0;
};
BucketLayout lay_out_bucket(std::span<const BucketItem> items, std::span<const int> bucket);

}  // namespace cohort::parallel
