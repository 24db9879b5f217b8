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

  // When a backward reaches the outputs of a forward that is to synchronise. From here on a failure
  // of the backward reaches all ranks.
  void begin_backward();

  // Before each forward that records a graph: whether its backward is to synchronise. Rebuilds the
  // buckets when that is due.
  void prepare(bool synchronise);

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
  void build(const std::vector<int>& order);
  void make_bucket(Bucket& bucket);
  void rebuild();
  std::vector<int> initial_order() const;

  // The stations of one backward.
  void arm();
  void on_gradient(int parameter);
  void launch_ready();
  void launch(Bucket& bucket, int index);
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

  bool synchronise_ = true;  // what the last forward asked for
  bool armed_ = false;       // a backward of ours is running
  std::size_t next_launch_ = 0;
  std::vector<int> arrival_;  // of the running backward
  bool rebuild_due_ = false;
  int rebuilds_ = 0;
  Clock::time_point begun_;
  OverlapReport report_;
};

}  // namespace cohort::parallel
