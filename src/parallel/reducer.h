#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/ddp.h"
#include "parallel/buckets.h"

namespace cohort::parallel {

// Averages gradients over the ranks of a group while backward runs.
//
// Each parameter's gradient has a place in a bucket. A hook on every parameter tells the reducer
// when its gradient is there; a bucket whose last gradient has come is all-reduced, in bucket
// order, on the rank's queue of collectives; a callback at the end of backward waits for all of
// them. After the first synchronised backward the buckets are rebuilt in the order in which
// gradients arrived on rank 0.
//
// Belongs to the rank's host thread.
class Reducer {
 public:
  Reducer(std::vector<nn::NamedTensor> parameters, std::shared_ptr<comm::ProcessGroup> group,
          const DDPOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before a forward that is to synchronise: rebuilds the buckets when that is due.
  void rebuild_if_due();

  // When a backward reaches an output of a forward. It synchronises when one of the forwards it
  // reaches was to; from then on a failure of it reaches all ranks.
  void begin_backward(bool synchronise);

  struct Bucket {
    DType dtype = DType::f32;
    std::vector<int> parameters;
    BucketLayout layout;
    Tensor memory;               // flat, symmetric where the group has that
    std::vector<Tensor> slices;  // of `memory`, one per parameter
    int missing = 0;             // gradients that have not come in this backward
    Clock::time_point ready;
    comm::Work work;
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<nn::NamedTensor>& parameters() const { return parameters_; }
  const OverlapReport& report() const { return report_; }
  int rebuilds() const { return rebuilds_; }

 private:
  std::vector<std::vector<int>> assignment(const std::vector<int>& order) const;
  void build(const std::vector<std::vector<int>>& assignment);
  void release_buckets();
  void make_bucket(Bucket& bucket);
  std::vector<int> initial_order() const;

  // The stations of one backward.
  void arm();
  void on_gradient(int parameter);
  void launch_ready();
  void launch(Bucket& bucket, int index);
  void collect(Bucket& bucket);
  void distribute(Bucket& bucket);
  void finish();
  void fail(const std::exception_ptr& error);
  void disarm();

  void require_all_gradients();
  void fill_report(Clock::time_point compute_end);

  struct Place {
    int bucket = -1;
    int slot = -1;
    bool arrived = false;
  };

  const std::vector<nn::NamedTensor> parameters_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  const DDPOptions options_;
  std::vector<BucketItem> items_;
  std::vector<HookHandle> hooks_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter

  bool armed_ = false;        // a backward that reached our outputs is running
  bool synchronise_ = false;  // and it is to synchronise
  std::size_t next_launch_ = 0;
  std::vector<int> arrival_;  // of the running backward
  bool rebuild_due_ = false;
  int rebuilds_ = 0;
  Clock::time_point begun_;
  OverlapReport report_;
};

}  // namespace cohort::parallel
