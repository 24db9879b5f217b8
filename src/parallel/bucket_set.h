#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/ddp_options.h"
#include "parallel/buckets.h"

namespace cohort::parallel {

// The buckets' memory, and which parameter's gradient has which place in it. With views, the places
// are the gradients' destinations. Belongs to the rank's host thread.
class BucketSet {
 public:
  struct Bucket {
    DType dtype = DType::f32;
    std::vector<int> parameters;
    BucketLayout layout;
    Tensor memory;               // what is reduced; symmetric where the group has that
    Tensor gradients;            // `memory` without the status
    std::vector<Tensor> slices;  // of `gradients`, one per parameter, with its shape and strides
  };

  // `status_elements` more elements, zero, follow the gradients of the last bucket: what the ranks
  // tell each other in every step travels there.
  BucketSet(const std::vector<nn::NamedTensor>& parameters,
            std::shared_ptr<comm::ProcessGroup> group, const DDPOptions& options,
            std::int64_t status_elements);
  ~BucketSet();
  BucketSet(const BucketSet&) = delete;
  BucketSet& operator=(const BucketSet&) = delete;

  // Forms the buckets for gradients that arrive in `order`, unless they are so already. Gradients
  // that live in the old buckets move into the new ones. Collective. OutOfMemory on all ranks; the
  // buckets are what they were then.
  void arrange(const std::vector<int>& order);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  int bucket_of(int parameter) const { return place(parameter).bucket; }
  // Whether the gradient is to live in its bucket.
  bool is_view(int parameter) const { return place(parameter).view; }
  // Whether it does now.
  bool lives_in_bucket(int parameter) const;
  const Tensor& slice(int parameter) const;
  const Tensor& status() const { return status_; }

 private:
  struct Place {
    int bucket = -1;
    int slot = -1;
    bool view = false;
  };
  const Place& place(int parameter) const { return places_[static_cast<std::size_t>(parameter)]; }
  const Tensor& tensor(int parameter) const {
    return parameters_[static_cast<std::size_t>(parameter)].tensor;
  }
  DType bucket_dtype(const Tensor& parameter) const;
  void make_room();
  std::vector<Bucket> allocate_all(const std::vector<std::vector<int>>& assignment) const;
  void allocate(Bucket& bucket, bool last) const;
  void adopt(std::vector<Bucket> fresh);

  const std::vector<nn::NamedTensor>& parameters_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  const DDPOptions& options_;
  const std::int64_t status_elements_;
  std::vector<BucketItem> items_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
  Tensor status_;
};

}  // namespace cohort::parallel
