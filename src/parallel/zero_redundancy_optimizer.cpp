#include "cohort/parallel/zero_redundancy_optimizer.h"

#include <algorithm>

#include "backend/backend.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "parallel/agreement.h"

namespace cohort::parallel {
namespace {

// Of each rank in one all-gather: large enough that its fixed cost disappears, small enough that
// the buffer of all ranks stays small beside a model.
constexpr std::int64_t kRoundBytes = std::int64_t{4} << 20;

// A part is a row of bytes, in which every parameter begins aligned.
std::int64_t padded_bytes(const Tensor& tensor) {
  constexpr auto unit = static_cast<std::int64_t>(kMemoryAlignment);
  return (static_cast<std::int64_t>(tensor.bytes()) + unit - 1) / unit * unit;
}

// Bytes [begin, begin + length) of a contiguous tensor, counted from its first element.
Tensor bytes_of(const Tensor& tensor, std::int64_t begin, std::int64_t length) {
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  return Tensor(make_intrusive<TensorImpl>(IntrusivePtr<Storage>(&tensor.storage()), DType::u8,
                                           Shape{length}, Dims{1},
                                           tensor.storage_offset() * item + begin));
}

// Past autograd, which sees the count of writes alone.
void copy_bytes(const Tensor& to, const Tensor& from) {
  backend::backend_for(to.device().type)
      .elementwise()
      .copy(Context::current().stream(to.device()), to, from);
}

}  // namespace

ZeroPartition::ZeroPartition(std::shared_ptr<comm::ProcessGroup> group) : group_(std::move(group)) {
  check(group_ != nullptr, "[ZeroRedundancyOptimizer] the process group is null");
  parts_.resize(static_cast<std::size_t>(group_->size()));
  loads_.resize(parts_.size());
}

int ZeroPartition::owner(const optim::Optimizer& optimizer, const Tensor& param) {
  auto found = owners_.find(param.impl());
  if (found == owners_.end()) {
    assign(optimizer);
    found = owners_.find(param.impl());
  }
  check(found != owners_.end(),
        "[ZeroRedundancyOptimizer] the tensor is not a parameter of this optimizer");
  return found->second;
}

// Gives the parameters of new groups an owner. It goes group by group, so that it does not matter
// when a rank comes to ask.
void ZeroPartition::assign(const optim::Optimizer& optimizer) {
  for (; groups_ < optimizer.group_count(); ++groups_) {
    const std::vector<Tensor> params = optimizer.parameters(groups_);
    std::vector<Tensor> by_size = params;
    std::stable_sort(by_size.begin(), by_size.end(),
                     [](const Tensor& a, const Tensor& b) { return a.bytes() > b.bytes(); });
    for (const Tensor& param : by_size) {
      const auto least = std::min_element(loads_.begin(), loads_.end());
      *least += padded_bytes(param);
      owners_.emplace(param.impl(), static_cast<int>(least - loads_.begin()));
    }
    for (const Tensor& param : params) {
      parts_[static_cast<std::size_t>(owners_.at(param.impl()))].push_back(param);
    }
    device_ = params.front().device();
    buffer_ = {};
  }
}

void ZeroPartition::agree(const optim::Optimizer& optimizer) {
  check<NotSupported>(!group_->announces_collectives(),
                      "[ZeroRedundancyOptimizer] join() cannot be used with it: a "
                      "rank without inputs could not update its part of the parameters (rank ",
                      group_->rank(), ", group ", group_->name(),
                      "); give all ranks equally many batches");
  if (agreed_ == optimizer.group_count()) return;
  std::vector<std::string> lines;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    lines.push_back(str("group ", group, ": lr ", optimizer.lr(group)));
    for (const Tensor& param : optimizer.parameters(group)) {
      lines.push_back(str("group ", group, ": ", param.dtype(), " ", param.shape()));
    }
  }
  require_agreement(*group_, "[ZeroRedundancyOptimizer] parameters", lines);
  assign(optimizer);
  agreed_ = groups_;
}

void ZeroPartition::abandon(const std::exception& error) noexcept {
  if (!group_->failure()) group_->abort(str("in ZeroRedundancyOptimizer's step: ", error.what()));
}

// fn(bytes of a parameter, their place in the round) for what rank's part has in the round that
// starts at byte `begin`.
template <typename Fn>
void ZeroPartition::for_each_piece(int rank, std::int64_t begin, Fn&& fn) const {
  const std::int64_t end = begin + buffer_.size(1);
  std::int64_t at = 0;
  for (const Tensor& param : parts_[static_cast<std::size_t>(rank)]) {
    const std::int64_t first = std::max(at, begin);
    const std::int64_t last = std::min(at + static_cast<std::int64_t>(param.bytes()), end);
    if (first < last) {
      const Tensor row = bytes_of(buffer_, rank * buffer_.size(1) + first - begin, last - first);
      fn(param, bytes_of(param, first - at, last - first), row);
    }
    at += padded_bytes(param);
  }
}

void ZeroPartition::make_buffer() {
  const std::int64_t most = *std::max_element(loads_.begin(), loads_.end());
  const MemoryCategoryScope category(MemoryCategory::communication);
  buffer_ = group_->allocate({group_->size(), std::min(most, kRoundBytes)},
                             {.dtype = DType::u8, .device = device_});
}

void ZeroPartition::exchange() {
  const std::int64_t most = *std::max_element(loads_.begin(), loads_.end());
  if (group_->size() == 1 || most == 0) return;
  if (!buffer_.defined()) make_buffer();
  const int self = group_->rank();
  const std::int64_t round = buffer_.size(1);
  for (std::int64_t begin = 0; begin < most; begin += round) {
    for_each_piece(self, begin, [](const Tensor&, const Tensor& piece, const Tensor& row) {
      copy_bytes(row, piece);
    });
    group_
        ->all_gather(buffer_, bytes_of(buffer_, self * round, round),
                     {.owner = "ZeroRedundancyOptimizer"})
        .wait();
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank == self) continue;
      for_each_piece(rank, begin, [](const Tensor& param, const Tensor& piece, const Tensor& row) {
        copy_bytes(piece, row);
        param.storage().bump_version();
      });
    }
  }
}

std::vector<ParameterState> ZeroPartition::gather(
    const optim::Optimizer& optimizer, const std::vector<std::vector<std::string>>& state_names,
    int root) {
  check(root >= 0 && root < group_->size(), "[consolidated_state] there is no rank ", root,
        " among ", group_->size());
  const std::vector<Tensor> params = optimizer.parameters();
  const int self = group_->rank();
  // Steps and whether there is state, of every parameter, from its owner.
  std::vector<std::int64_t> facts(2 * params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (owner(optimizer, params[i]) != self) continue;
    facts[2 * i] = optimizer.step_count(params[i]);
    facts[2 * i + 1] = optimizer.state(params[i]).empty() ? 0 : 1;
  }
  const Tensor shared = Tensor::from(facts, {static_cast<std::int64_t>(facts.size())});
  group_->all_reduce(shared, comm::ReduceOp::sum, {.owner = "optimizer state"}).synchronize();
  facts = shared.to_vector<std::int64_t>();

  std::vector<ParameterState> result(self == root ? params.size() : 0);
  for (std::size_t i = 0; i < params.size(); ++i) {
    const int from = owner(optimizer, params[i]);
    if (self == root) result[i].step_count = facts[2 * i];
    if (facts[2 * i + 1] == 0 || (self != root && self != from)) continue;
    const std::vector<optim::NamedState> mine = optimizer.state(params[i]);
    for (std::size_t k = 0; k < state_names[i].size(); ++k) {
      if (from != root && self == from) {
        group_->send(mine[k].tensor, root, {.owner = mine[k].name}).synchronize();
      }
      if (self != root) continue;
      Tensor tensor = from == root ? mine[k].tensor.clone()
                                   : Tensor::empty(params[i].shape(), params[i].options());
      if (from != root) group_->recv(tensor, from, {.owner = state_names[i][k]}).synchronize();
      result[i].state.push_back({state_names[i][k], tensor.to(Device::cpu())});
    }
  }
  return result;
}

}  // namespace cohort::parallel
