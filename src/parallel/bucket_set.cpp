#include "parallel/bucket_set.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/memory.h"

namespace cohort::parallel {
namespace {

// "layers.0" of "layers.0.weight".
std::string module_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::int64_t round_up(std::int64_t elements, DType dtype) {
  const auto unit = static_cast<std::int64_t>(kMemoryAlignment / item_size(dtype));
  return (elements + unit - 1) / unit * unit;
}

}  // namespace

BucketSet::BucketSet(const std::vector<nn::NamedTensor>& parameters,
                     std::shared_ptr<comm::ProcessGroup> group, const DDPOptions& options,
                     std::int64_t status_elements)
    : parameters_(parameters),
      group_(std::move(group)),
      options_(options),
      status_elements_(status_elements),
      places_(parameters.size()) {
  std::map<std::string, int> groups;
  for (const auto& [name, tensor] : parameters_) {
    // A parameter of the root has no module that it shares its moment with.
    const std::string module = module_of(name);
    const auto next = static_cast<int>(groups.size());
    const int group = groups.try_emplace(module.empty() ? "." + name : module, next).first->second;
    items_.push_back({.dtype = bucket_dtype(tensor), .numel = tensor.numel(), .group = group});
  }
  std::vector<int> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.reverse_registration) std::reverse(order.begin(), order.end());
  arrange(order);
}

BucketSet::~BucketSet() {
  // Gradients stay where they are, and keep the buckets' memory alive while they do.
  for (const auto& [name, tensor] : parameters_) {
    if (tensor.requires_grad()) set_grad_destination(tensor, {});
  }
}

DType BucketSet::bucket_dtype(const Tensor& parameter) const {
  return options_.mixed_precision.reduce_dtype.value_or(parameter.dtype());
}

void BucketSet::arrange(const std::vector<int>& order) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const std::vector<std::vector<int>> wanted = assign_buckets(
      items_, order,
      {.bytes = options_.bucket_cap_mb * kMiB, .last_bytes = options_.last_bucket_cap_mb * kMiB});
  if (std::equal(wanted.begin(), wanted.end(), buckets_.begin(), buckets_.end(),
                 [](const std::vector<int>& a, const Bucket& b) { return a == b.parameters; })) {
    return;
  }
  std::vector<std::vector<int>> before;
  for (const Bucket& bucket : buckets_) before.push_back(bucket.parameters);
  make_room();
  try {
    adopt(allocate_all(wanted));
  } catch (const OutOfMemory&) {
    if (buckets_.empty() && !before.empty()) adopt(allocate_all(before));
    throw;
  }
}

std::vector<BucketSet::Bucket> BucketSet::allocate_all(
    const std::vector<std::vector<int>>& assignment) const {
  std::vector<Bucket> buckets;
  for (const std::vector<int>& parameters : assignment) {
    Bucket& bucket = buckets.emplace_back();
    bucket.parameters = parameters;
    bucket.dtype = items_[static_cast<std::size_t>(parameters.front())].dtype;
    bucket.layout = lay_out_bucket(items_, parameters);
    allocate(bucket, buckets.size() == assignment.size());
  }
  return buckets;
}

// Where no gradient lives in the old buckets, they make room before new ones are allocated.
void BucketSet::make_room() {
  for (std::size_t i = 0; i < parameters_.size() && !buckets_.empty(); ++i) {
    if (lives_in_bucket(static_cast<int>(i))) return;
  }
  for (const auto& named : parameters_) set_grad_destination(named.tensor, {});
  buckets_.clear();
  status_ = {};
}

void BucketSet::allocate(Bucket& bucket, bool last) const {
  const bool any_view =
      options_.gradient_as_bucket_view &&
      std::any_of(bucket.parameters.begin(), bucket.parameters.end(),
                  [&](int parameter) { return tensor(parameter).dtype() == bucket.dtype; });
  const MemoryCategoryScope category(any_view ? MemoryCategory::gradients
                                              : MemoryCategory::communication);
  const std::int64_t status = last ? round_up(status_elements_, bucket.dtype) : 0;
  const Device device = tensor(bucket.parameters.front()).device();
  const std::int64_t elements = bucket.layout.elements;
  bucket.memory = group_->allocate({elements + status}, {bucket.dtype, device, false});
  bucket.memory.zero_();  // the padding is reduced too, and must stay finite
  bucket.gradients = bucket.memory.as_strided({elements}, {1}, 0);
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    const Tensor& parameter = tensor(bucket.parameters[slot]);
    bucket.slices.push_back(bucket.memory.as_strided(parameter.shape(), dense_strides(parameter),
                                                     bucket.layout.offsets[slot]));
  }
}

// Replaces the buckets. Gradients that are alive move from the old ones, which go then.
void BucketSet::adopt(std::vector<Bucket> fresh) {
  const std::vector<Bucket> old = std::exchange(buckets_, std::move(fresh));
  status_ =
      buckets_.back().memory.as_strided({status_elements_}, {1}, buckets_.back().layout.elements);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t slot = 0; slot < buckets_[b].parameters.size(); ++slot) {
      const int index = buckets_[b].parameters[slot];
      const Tensor& parameter = tensor(index);
      const bool view = options_.gradient_as_bucket_view && parameter.dtype() == buckets_[b].dtype;
      places_[static_cast<std::size_t>(index)] = {static_cast<int>(b), static_cast<int>(slot),
                                                  view};
      if (view) set_grad_destination(parameter, buckets_[b].slices[slot]);
    }
  }
}

bool BucketSet::lives_in_bucket(int parameter) const {
  const Tensor& gradient = tensor(parameter).grad();
  return is_view(parameter) && gradient.defined() &&
         gradient.is_same(grad_destination(tensor(parameter)));
}

const Tensor& BucketSet::slice(int parameter) const {
  const Place& found = place(parameter);
  return buckets_[static_cast<std::size_t>(found.bucket)]
      .slices[static_cast<std::size_t>(found.slot)];
}

}  // namespace cohort::parallel
