// What the ranks tell each other of a step: failures, and which parameters were used.

#include <algorithm>
#include <cstring>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "parallel/reducer.h"
#include "parallel/what_of.h"

namespace cohort::parallel {
namespace {

// Of a failure's text, what the other ranks get to read.
constexpr std::size_t kFailureBytes = 1000;

// What a failed rank writes into the status. Every policy's scale leaves it above zero in every
// dtype: f16 ends at 6e-8, so 1000 may be divided by counts of up to 1e10.
constexpr double kFailed = 1000;

}  // namespace

std::string Reducer::missing_gradients() const {
  // The first step under a static graph shows which parameters take part.
  if (options_.static_graph && !graph_known_) return {};
  std::string names;
  int count = 0;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (gradients_[i].arrived || !gradients_[i].expected) continue;
    // A long list helps nobody: the first ten tell which part of the model it is.
    if (++count <= 10) names += (count > 1 ? ", '" : "'") + parameters_[i].name + "'";
  }
  if (count == 0) return {};
  const std::string where =
      str(" of ", gradients_.size(), " parameters: ", names, count > 10 ? ", …" : "", " (rank ",
          group_->rank(), ", group ", group_->name(), ")");
  return str("[DDP] backward gave no gradient to ", count, where,
             "; they took no part in the loss, or the module computes with other tensors now. "
             "Leave them out of the model, freeze them before DDP is built, or set "
             "find_unused_parameters");
}

void Reducer::write_status() {
  Tensor status = buckets_->status();
  std::vector<float> values(static_cast<std::size_t>(status.numel()), 0);
  values[0] = failed_ ? static_cast<float>(kFailed) : 0;
  if (may_be_unused()) {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      // As large as a failure, for the same reason.
      values[1 + i] = gradients_[i].used ? static_cast<float>(kFailed) : 0;
    }
  }
  status.copy_(Tensor::from(values, status.shape()).to(status.device()));
}

// True when a rank has failed. Under a hook, and on devices, no failure travels.
bool Reducer::read_status() {
  const bool unused = may_be_unused();
  if (!unused && !failures_travel()) return false;
  const std::vector<float> values = buckets_->status().to(Device::cpu()).to_vector<float>();
  totals_.unused_parameters.clear();
  for (std::size_t i = 0; unused && i < gradients_.size(); ++i) {
    used_anywhere_[i] = values[1 + i] > 0;
    if (!used_anywhere_[i]) totals_.unused_parameters.push_back(parameters_[i].name);
  }
  return failures_travel() && values[0] > 0;
}

bool Reducer::failures_travel() const {
  return !hook_ && !collectives_in_backward_ && buckets_->status().device() == Device::cpu();
}

// This rank's backward ended by `error`. The others wait for its part of the buckets, and get it:
// with the news that it is worthless.
void Reducer::fail(const std::exception_ptr& error) {
  if (stage_ == Stage::idle) return;
  if (stage_ == Stage::synchronising) {
    failed_ = true;
    failure_ = what_of(error);
    ++totals_.failed_steps;
    totals_.last_error = failure_;
    const std::string text = str("in backward: ", failure_);
    if (failures_travel() && next_launch_ < flights_.size() && !group_->failure()) {
      try {
        reduce_all();
        exchange_failures();
      } catch (...) {
        group_->abort(text);
      }
    } else if (group_->size() > 1) {
      group_->abort(text);
    }
  }
  abandon_accumulation();
  end();
}

// The texts of all ranks; empty where a rank has not failed. Collective.
std::vector<std::string> Reducer::exchange_failures() {
  const auto size = static_cast<std::size_t>(group_->size());
  std::vector<std::uint8_t> bytes(size * kFailureBytes, 0);
  const std::size_t length = std::min(failure_.size(), kFailureBytes);
  if (length > 0) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(group_->rank()) * kFailureBytes,
                failure_.data(), length);
  }
  const Tensor all = Tensor::from(bytes, {static_cast<std::int64_t>(bytes.size())});
  group_->all_reduce(all, comm::ReduceOp::max, {.owner = "failures of this step"}).synchronize();
  const auto* text = reinterpret_cast<const char*>(all.data<std::uint8_t>());
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const char* begin = text + rank * kFailureBytes;
    texts.emplace_back(begin, std::find(begin, begin + kFailureBytes, '\0'));
  }
  return texts;
}

void Reducer::throw_failures_of_others() {
  const std::vector<std::string> texts = exchange_failures();
  abandon_accumulation();
  end();
  int first = -1;
  int more = -1;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    ++more;
    if (first < 0) first = static_cast<int>(rank);
  }
  const std::string text =
      str("[DDP] rank ", first, " failed in this backward: ",
          first < 0 ? std::string("(no text)") : texts[static_cast<std::size_t>(first)],
          more > 0 ? str("; and ", more, " more") : std::string(), " (seen on rank ",
          group_->rank(), ", group ", group_->name(),
          "); no rank has gradients of this step, and the next one may begin");
  ++totals_.failed_steps;
  totals_.last_error = text;
  throw RemoteError(text, first);
}

void Reducer::fill(DDPLoggingData& data) const {
  data.synchronised_steps = totals_.synchronised_steps;
  data.failed_steps = totals_.failed_steps;
  data.last_error = totals_.last_error;
  data.unused_parameters = totals_.unused_parameters;
  data.comm_hook = hook_name_;
  data.rebuilds = rebuilds_;
  for (const BucketSet::Bucket& bucket : buckets_->buckets()) {
    data.bucket_bytes.push_back(bucket.layout.elements *
                                static_cast<std::int64_t>(item_size(bucket.dtype)));
  }
  if (totals_.synchronised_steps == 0) return;
  const auto steps = static_cast<double>(totals_.synchronised_steps);
  data.compute_ms = totals_.compute_ms / steps;
  data.communication_ms = totals_.communication_ms / steps;
  data.overlap_ms = totals_.overlap_ms / steps;
}

void Reducer::adopt_progress(int root) {
  // Which parameters it uses under a static graph is each rank's own affair.
  const Tensor due = Tensor::scalar(std::int32_t{rebuild_due_ ? 1 : 0});
  group_->broadcast(due, root, {.owner = "progress of join"}).synchronize();
  rebuild_due_ = due.item<std::int32_t>() != 0;
}

}  // namespace cohort::parallel
