#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/module.h"
#include "parallel/flat_layout.h"
#include "parallel/fsdp_collectives.h"

namespace cohort::parallel {

// Parameters of one unit, dtype and trainability as one buffer, of which each rank keeps its part.
//
// At rest a parameter is a row: the elements of it that this rank owns, a view of the shard. While
// exchanged, the same tensor is the whole parameter, a view of the gathered buffer. What autograd
// knows of it stays with it. In backward its gradient is born in a flat gradient buffer of the same
// layout; what is left of that after the reduction becomes the gradient of the row.
//
// Belongs to the rank's host thread.
class FlatParameter {
 public:
  struct Config {
    DType compute;           // dtype of the gathered buffer
    DType reduce;            // of the reduction of its gradient
    bool zero_copy = false;  // the gathered buffer lies once in memory, shared by the ranks
    bool offload = false;    // shards lie in host memory; not with zero_copy
    bool keep_low_precision = false;  // gradients of the rows stay in `reduce`
    std::string name;                 // "layers.0", for messages and collectives' owners
  };

  // Takes the parameters' values; the parameters themselves stay as they are until adopt().
  // Collective with zero_copy.
  FlatParameter(std::vector<nn::NamedTensor> parameters, std::shared_ptr<comm::ProcessGroup> group,
                Config config);
  // Parameters that were not given back stay rows.
  ~FlatParameter() = default;
  FlatParameter(const FlatParameter&) = delete;
  FlatParameter& operator=(const FlatParameter&) = delete;

  // The parameters become rows and let go of the memory that they had.
  void adopt() noexcept;
  // The way back, at rest. Memory for all of them in their own dtype, and, collective, the
  // parameters whole again as views of it, without gradients. Nothing else may be called then.
  Tensor whole_memory() const;
  void give_back(const Tensor& whole);

  std::size_t size() const { return parameters_.size(); }
  const std::vector<nn::NamedTensor>& parameters() const { return parameters_; }
  const Shape& shape(std::size_t i) const { return shapes_[i]; }
  const FlatLayout& layout() const { return layout_; }
  // Whether any parameter is trained, and each one, since the last update_trained().
  bool trained() const { return trained_; }
  bool trained(std::size_t i) const { return trains_[i]; }
  // Whether gradients are converted for their reduction.
  bool converts_gradient() const { return config_.compute != config_.reduce; }
  DType dtype() const { return shard_.dtype(); }
  const Config& config() const { return config_; }
  FlatLayout::Range local(std::size_t i) const { return layout_.local(i, group_->rank()); }
  const Tensor& shard() const { return shard_; }
  // The ranks that share it out.
  comm::ProcessGroup& group() const { return *group_; }
  // The elements of parameter i that this rank owns, in the shard's memory, also while exchanged.
  Tensor row_view(std::size_t i) const;
  // Parameter i where it always lies whole, in the shards' own dtype; undefined where it does not.
  // The other ranks' part of it is up to date behind a fence.
  Tensor shared_whole(std::size_t i) const;
  // After writes to the shard: a backward through values gathered before is an error.
  void written();
  // Bytes of the gathered buffer, and of the gradients'; of those in the reduction's dtype.
  std::int64_t full_bytes() const;
  std::int64_t reduced_bytes() const;

  // At rest: whether parameters were frozen or unfrozen since it took note of that.
  bool trainability_changed() const;
  void update_trained();
  // At rest: AutogradError with a name when a parameter is not the row that it was left as.
  void check_rows() const;

  // Counts the writes to the shard.
  std::uint32_t version() const { return shard_.storage().version(); }

  // True where the gathered buffer is always there: nothing is moved to gather it.
  bool resident() const { return resident_; }
  // A resident buffer of another dtype than the shard: brings this rank's part up to date.
  void refresh();

  // From here to end_rehearsal(), at rest at both: its place is taken by one on the meta device of
  // the same layout, whose parameters have no gradients.
  void begin_rehearsal();
  void end_rehearsal();

  // Gathers into `memory` (of another user until `available`), from `byte_offset` on; not for a
  // resident buffer.
  comm::Work gather(FSDPCollectives& collectives, const Tensor& memory, std::int64_t byte_offset);
  // Instead, where gather() has filled `memory` before, and shards have not changed since.
  void adopt_gathered(const Tensor& memory, std::int64_t byte_offset);
  // What gather() has filled is not needed any more.
  void drop_gathered();
  // The parameters become whole, and rows again.
  void exchange();
  bool exchanged() const { return exchanged_; }

  // While exchanged, before backward comes to the unit: gradients are to be born in `memory`. Those
  // that `lies_there`, by parameter, names are there already and are added to.
  void begin_backward(const Tensor& memory, std::int64_t byte_offset,
                      const std::vector<bool>& lies_there);
  // After the last gradient: the flat gradient, padding and others than `arrived` zero. The
  // parameters have
  // no gradient from here on, until take_gradient() or the next begin_backward().
  Tensor end_backward(const std::vector<bool>& arrived);
  // Instead, after a failure, wherever it came: the parameters have no gradient.
  void abandon_backward();
  // The same, at rest: they have the gradients from before this backward.
  void undo_backward();
  // At rest: `row`, this rank's part of the reduced gradient, is added to the gradients that the
  // parameters had before this backward. Parameters that are not `used` keep what they had.
  void take_gradient(const Tensor& row, const std::vector<bool>& used);

 private:
  // What is put aside for a rehearsal.
  struct Aside {
    Tensor shard;
    Tensor full;
    std::vector<Tensor> rows;  // hold the parameters' own views
    std::vector<Tensor> stand_ins;
    std::vector<Tensor> gradients;
    Tensor counted;  // memory that the stand-in has beside its shard
  };

  Tensor gathered_row(const Tensor& memory, std::int64_t byte_offset) const;
  Tensor full_view(std::size_t i) const;

  std::vector<nn::NamedTensor> parameters_;
  std::vector<Shape> shapes_;
  std::shared_ptr<comm::ProcessGroup> group_;
  Config config_;
  FlatLayout layout_;
  bool trained_ = false;
  std::vector<bool> trains_;
  bool resident_ = false;
  bool gathered_ = false;  // full_ has borrowed memory
  bool exchanged_ = false;
  Tensor shard_;                   // this rank's part, in the parameters' own dtype
  Tensor full_;                    // [total], in config_.compute; without memory while not gathered
  std::vector<Tensor> stand_ins_;  // what each parameter is not at the moment
  Tensor gradient_;                // flat, between begin_backward() and end_backward()
  std::vector<Tensor> kept_;       // gradients of the rows from before this backward
  std::unique_ptr<Aside> aside_;
  std::optional<std::uint32_t> refreshed_;  // the shard's version in a shared buffer
};

}  // namespace cohort::parallel
