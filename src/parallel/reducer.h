#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/deadline.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/comm_hook.h"
#include "cohort/parallel/ddp_logging.h"
#include "cohort/parallel/ddp_options.h"
#include "cohort/parallel/overlap_report.h"
#include "parallel/bucket_set.h"
#include "parallel/reduce_scale.h"

namespace cohort::parallel {

// Reduces gradients over the ranks of a group while backward runs.
//
// Each parameter's gradient has a place in a bucket. A hook on every parameter tells the reducer
// when its gradient is there; a bucket whose last gradient has come is all-reduced, in bucket
// order, on the rank's queue of collectives; a callback at the end of backward waits for all of
// them. After the first synchronised backward the buckets are rebuilt in the order in which
// gradients arrived on rank 0.
//
// The last bucket also carries the step's status: whether a rank has failed, and, where parameters
// may be unused, which ones each rank has used. So all ranks learn of both without a collective of
// its own. Belongs to the rank's host thread.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // `collectives_in_backward`: the module has collectives of its own in backward, which a rank that
  // has failed could not join; then its failure ends the group.
  Reducer(std::vector<nn::NamedTensor> parameters, std::shared_ptr<comm::ProcessGroup> group,
          const DDPOptions& options, bool collectives_in_backward);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before a forward that is to synchronise: rebuilds the buckets when that is due.
  void rebuild_if_due();

  // When a backward reaches an output of a forward. It synchronises when one of the forwards it
  // reaches was to; from then on a failure of it reaches all ranks.
  void begin_backward(bool synchronise);

  void set_static_graph();
  // InvalidArgument, naming `what`, while a backward runs.
  void check_idle(const char* what) const;
  void set_hook(CommHook hook, std::string name);
  // Forgets counts and used parameters since the last synchronised backward.
  void abandon_accumulation();
  ReduceScale& scale() { return scale_; }

  const BucketSet& buckets() const { return *buckets_; }
  const std::vector<nn::NamedTensor>& parameters() const { return parameters_; }
  const OverlapReport& report() const { return report_; }
  void fill(DDPLoggingData& data) const;
  int rebuilds() const { return rebuilds_; }

  // What ranks that were not in all of join's steps take over from one that was.
  void adopt_progress(int root);

 private:
  // What is known of a parameter.
  struct Gradient {
    bool arrived = false;     // in the running backward
    bool expected = true;     // the running backward will come to it
    bool used = false;        // it has arrived since the last synchronised backward
    bool in_graph = true;     // under a static graph, once that is known
    std::uint64_t early = 0;  // the backward in which it arrived before any output of ours
  };
  // A bucket's part of the running backward.
  struct Flight {
    int missing = 0;  // expected gradients that have not come
    Clock::time_point ready;
    comm::Work work;
    BucketWork hooked;
  };
  enum class Stage { idle, local, synchronising };

  bool may_be_unused() const { return options_.find_unused_parameters || options_.static_graph; }

  void make_buckets();
  Flight& flight_of(int parameter) {
    return flights_[static_cast<std::size_t>(buckets_->bucket_of(parameter))];
  }

  // The stations of one backward.
  void arm();
  void check_static_graph();
  void on_gradient(int parameter);
  void count_in(int parameter);
  void launch_ready();
  void launch_next();
  void launch_through_hook(const BucketSet::Bucket& bucket, int index, bool last);
  void bring_in(int parameter);
  void finish();
  void reduce_all();
  void take_result(int bucket);
  void give_back(int parameter);
  void end();
  void fill_report(Clock::time_point compute_end);

  // How a step's failure reaches all ranks (reducer_status.cpp).
  std::string missing_gradients() const;
  void write_status();
  bool read_status();
  bool failures_travel() const;
  void fail(const std::exception_ptr& error);
  std::vector<std::string> exchange_failures();
  [[noreturn]] void throw_failures_of_others();

  // Says who manages the gradients, as long as the reducer lives.
  class Managed {
   public:
    explicit Managed(std::vector<nn::NamedTensor> parameters);
    ~Managed() { release(parameters.size()); }
    Managed(const Managed&) = delete;
    Managed& operator=(const Managed&) = delete;
    const std::vector<nn::NamedTensor> parameters;

   private:
    void release(std::size_t count) noexcept;
  };

  const Managed managed_;
  const std::vector<nn::NamedTensor>& parameters_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  DDPOptions options_;
  const bool collectives_in_backward_;
  std::vector<HookHandle> hooks_;
  std::unique_ptr<BucketSet> buckets_;
  ReduceScale scale_;
  CommHook hook_;
  std::string hook_name_;

  Stage stage_ = Stage::idle;
  std::vector<Gradient> gradients_;  // by parameter
  std::vector<Flight> flights_;      // by bucket
  std::size_t next_launch_ = 0;
  std::vector<int> arrival_;  // of the running backward
  // Gradients that lie in a bucket but are no contribution of this backward: should no rank have
  // one, they are put back.
  std::vector<std::pair<int, Tensor>> kept_;
  std::vector<bool> used_anywhere_;  // by parameter, of the last synchronised backward
  comm::Work status_work_;           // under a hook, which sees no status
  bool failed_ = false;              // this rank, in the running backward
  std::string failure_;              // why

  bool graph_known_ = false;  // under static_graph
  bool begun_once_ = false;   // a backward has been here
  bool rebuild_due_ = false;
  int rebuilds_ = 0;
  Clock::time_point begun_;
  OverlapReport report_;
  DDPLoggingData totals_;  // times are sums here
};

}  // namespace cohort::parallel
