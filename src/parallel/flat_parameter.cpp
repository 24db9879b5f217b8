#include "parallel/flat_parameter.h"

#include <algorithm>
#include <utility>

#include "autograd/meta.h"
#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/ops/elementwise.h"
#include "parallel/fsdp_offload.h"
#include "parallel/slots.h"

namespace cohort::parallel {
namespace {

// Elements to which parameters are aligned: 64 bytes in each of the dtypes that the layout serves.
std::int64_t alignment(DType a, DType b) {
  return static_cast<std::int64_t>(kMemoryAlignment / std::min(item_size(a), item_size(b)));
}

FlatLayout layout_of(const std::vector<nn::NamedTensor>& parameters, DType compute, int ranks) {
  std::vector<std::int64_t> numels;
  for (const auto& [name, tensor] : parameters) numels.push_back(tensor.numel());
  return FlatLayout(numels, alignment(parameters.front().tensor.dtype(), compute), ranks);
}

// A row without memory of its own.
Tensor unbacked_row(std::int64_t elements, DType dtype, Device device) {
  const auto bytes = static_cast<std::size_t>(elements) * item_size(dtype);
  return Tensor(make_intrusive<TensorImpl>(
      make_intrusive<Storage>(nullptr, bytes, device, std::function<void()>()), dtype,
      Shape{elements}, Dims{1}, 0));
}

}  // namespace

FlatParameter::FlatParameter(std::vector<nn::NamedTensor> parameters,
                             std::shared_ptr<comm::ProcessGroup> group, Config config)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      config_(std::move(config)),
      layout_(layout_of(parameters_, config_.compute, group_->size())),
      trains_(parameters_.size()),
      kept_(parameters_.size()) {
  update_trained();
  const NoGrad no_grad;
  const MemoryCategoryScope category(MemoryCategory::parameters);
  const DType own = parameters_.front().tensor.dtype();
  const Device device = parameters_.front().tensor.device();
  const bool converts = own != config_.compute;
  resident_ = config_.zero_copy || (group_->size() == 1 && !converts && !config_.offload);
  const TensorOptions full_options{config_.compute, device, false};
  if (!resident_) {
    full_ = unbacked_row(layout_.total(), config_.compute, device);
  } else if (group_->size() == 1) {
    full_ = Tensor::empty({layout_.total()}, full_options);
  } else {
    full_ = group_->allocate_shared({layout_.total()}, full_options);
  }
  const std::int64_t first = layout_.shard() * group_->rank();
  if (config_.offload) {
    shard_ = host_row(layout_.shard(), own, MemoryCategory::parameters, device);
  } else {
    shard_ = resident_ && !converts ? full_.as_strided({layout_.shard()}, {1}, first)
                                    : Tensor::empty({layout_.shard()}, {own, device, false});
  }
  shard_.zero_();  // the padding takes part in every update, and stays zero
  shard_.storage().set_padded_slots();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    shapes_.push_back(parameter.shape());
    const FlatLayout::Range part = local(i);
    Tensor own = row_view(i);
    const Tensor whole = parameter.detach().contiguous();
    own.copy_(whole.as_strided({part.size()}, {1}, whole.storage_offset() + part.begin));
    stand_ins_.push_back(own);
  }
}

// Each parameter keeps its gradient information and becomes the row.
void FlatParameter::adopt() noexcept {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.impl()->swap_view(*stand_ins_[i].impl());
    stand_ins_[i] = full_view(i);
  }
}

Tensor FlatParameter::whole_memory() const {
  const MemoryCategoryScope category(MemoryCategory::parameters);
  return Tensor::empty({layout_.total()}, {shard_.dtype(), shard_.device(), false});
}

void FlatParameter::give_back(const Tensor& whole) {
  const NoGrad no_grad;
  Tensor own = whole.as_strided({layout_.shard()}, {1}, layout_.shard() * group_->rank());
  own.copy_(shard_);
  group_->all_gather(whole, own, {.owner = config_.name}).wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    if (parameter.grad().defined()) parameter.set_grad({});
    const Tensor view =
        whole.as_strided(shapes_[i], contiguous_strides(shapes_[i]), layout_.offset(i));
    parameter.impl()->swap_view(*view.impl());
  }
}

Tensor FlatParameter::row_view(std::size_t i) const {
  const FlatLayout::Range part = local(i);
  const std::int64_t first = layout_.shard() * group_->rank();
  const std::int64_t at = part.size() > 0 ? layout_.offset(i) + part.begin - first : 0;
  return shard_.as_strided({part.size()}, {1}, shard_.storage_offset() + at);
}

void FlatParameter::begin_rehearsal() {
  const NoGrad no_grad;
  const MemoryCategoryScope category(MemoryCategory::parameters);
  const DType own = shard_.dtype();
  const Device meta = Device::meta();
  aside_ = std::make_unique<Aside>(Aside{shard_, full_, {}, std::exchange(stand_ins_, {}), {}, {}});
  shard_ = config_.offload ? host_row(layout_.shard(), own, MemoryCategory::parameters, meta)
                           : Tensor::empty({layout_.shard()}, {own, meta, false});
  shard_.storage().set_padded_slots();
  full_ = unbacked_row(layout_.total(), config_.compute, meta);
  if (resident_ && own != config_.compute) {
    aside_->counted = Tensor::empty({layout_.shard()}, {config_.compute, meta, false});
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    aside_->gradients.push_back(parameter.grad());
    parameter.set_grad({});
    aside_->rows.push_back(row_view(i));
    parameter.impl()->swap_view(*aside_->rows.back().impl());
    stand_ins_.push_back(full_view(i));
  }
}

void FlatParameter::end_rehearsal() {
  const std::unique_ptr<Aside> aside = std::move(aside_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    parameter.impl()->swap_view(*aside->rows[i].impl());
    // Which may be of another dtype than set_grad() wants.
    if (AutogradMeta* meta = AutogradMeta::of(parameter)) meta->grad = aside->gradients[i];
  }
  shard_ = aside->shard;
  full_ = aside->full;
  stand_ins_ = aside->stand_ins;
}

Tensor FlatParameter::full_view(std::size_t i) const {
  return full_.as_strided(shapes_[i], contiguous_strides(shapes_[i]), layout_.offset(i));
}

Tensor FlatParameter::shared_whole(std::size_t i) const {
  return resident_ && config_.compute == shard_.dtype() ? full_view(i) : Tensor();
}

void FlatParameter::written() {
  full_.storage().bump_version();
}

std::int64_t FlatParameter::full_bytes() const {
  return layout_.total() * static_cast<std::int64_t>(item_size(config_.compute));
}

std::int64_t FlatParameter::reduced_bytes() const {
  return layout_.total() * static_cast<std::int64_t>(item_size(config_.reduce));
}

bool FlatParameter::trainability_changed() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad() != trains_[i]) return true;
  }
  return false;
}

void FlatParameter::update_trained() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    trains_[i] = parameters_[i].tensor.requires_grad();
  }
  trained_ = std::find(trains_.begin(), trains_.end(), true) != trains_.end();
}

void FlatParameter::check_rows() const {
  for (const auto& [name, tensor] : parameters_) {
    check<AutogradError>(&tensor.storage() == &shard_.storage() && tensor.dtype() == shard_.dtype(),
                         "[FSDP] parameter '", name, "' of unit '", config_.name,
                         "' was converted or replaced since it was wrapped (rank ", group_->rank(),
                         "); convert the model before, and write into parameters in place");
  }
}

void FlatParameter::refresh() {
  if (!resident_ || config_.compute == shard_.dtype() || aside_) return;
  // Unchanged values are not written again: an earlier forward's backward may still need them.
  if (std::exchange(refreshed_, version()) == version()) return;
  const NoGrad no_grad;
  Tensor own = full_.as_strided({layout_.shard()}, {1}, layout_.shard() * group_->rank());
  own.copy_(shard_);
}

// The gathered buffer in `memory`, as a storage of its own: writing the gathered values is no
// change of the parameters' values, which is what versions count.
Tensor FlatParameter::gathered_row(const Tensor& memory, std::int64_t byte_offset) const {
  const auto bytes = static_cast<std::size_t>(full_bytes());
  auto* data = static_cast<std::byte*>(memory.raw());
  if (data != nullptr) data += byte_offset;  // null on the meta device
  return Tensor(make_intrusive<TensorImpl>(
      make_intrusive<Storage>(data, bytes, memory.device(), [lent = memory] {}), config_.compute,
      Shape{layout_.total()}, Dims{1}, 0));
}

void FlatParameter::adopt_gathered(const Tensor& memory, std::int64_t byte_offset) {
  const Tensor row = gathered_row(memory, byte_offset);
  full_.storage().borrow_memory(IntrusivePtr<Storage>(&row.storage()), 0);
  gathered_ = true;
}

comm::Work FlatParameter::gather(FSDPCollectives& collectives, const Tensor& memory,
                                 std::int64_t byte_offset) {
  const NoGrad no_grad;
  const Tensor target = gathered_row(memory, byte_offset);
  const comm::CollectiveOptions options{.owner = config_.name};
  comm::Work work;
  if (config_.compute == shard_.dtype() && !config_.offload) {
    work = collectives.all_gather(*group_, target, shard_, options);
  } else {
    Tensor own = target.as_strided({layout_.shard()}, {1}, layout_.shard() * group_->rank());
    own.copy_(shard_);
    work = collectives.all_gather(*group_, target, own, options);
  }
  full_.storage().borrow_memory(IntrusivePtr<Storage>(&target.storage()), 0);
  gathered_ = true;
  return work;
}

void FlatParameter::drop_gathered() {
  if (std::exchange(gathered_, false)) full_.storage().release_memory();
}

void FlatParameter::exchange() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.impl()->swap_view(*stand_ins_[i].impl());
  }
  exchanged_ = !exchanged_;
}

void FlatParameter::begin_backward(const Tensor& memory, std::int64_t byte_offset,
                                   const std::vector<bool>& lies_there) {
  gradient_ = typed_row(memory, byte_offset, config_.compute, layout_.total());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!trains_[i]) continue;
    Tensor parameter = parameters_[i].tensor;
    if (parameter.grad().defined()) kept_[i] = parameter.grad();
    parameter.set_grad({});
    set_grad_destination(parameter,
                         gradient_.as_strided(shapes_[i], contiguous_strides(shapes_[i]),
                                              gradient_.storage_offset() + layout_.offset(i)));
    if (lies_there[i]) parameter.set_grad(grad_destination(parameter));
  }
}

Tensor FlatParameter::end_backward(const std::vector<bool>& arrived) {
  const NoGrad no_grad;
  const std::int64_t base = gradient_.storage_offset();
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) gradient_.as_strided({end - begin}, {1}, base + begin).zero_();
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    const std::int64_t begin = layout_.offset(i);
    const std::int64_t end = begin + layout_.numel(i);
    if (!arrived[i] || !parameter.grad().defined()) zero(begin, end);
    zero(end, i + 1 < parameters_.size() ? layout_.offset(i + 1) : layout_.total());
    if (!trains_[i]) continue;
    parameter.set_grad({});
    set_grad_destination(parameter, {});
  }
  return std::exchange(gradient_, {});
}

void FlatParameter::abandon_backward() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    if (!parameter.requires_grad()) continue;
    parameter.set_grad({});
    set_grad_destination(parameter, {});
    kept_[i] = {};
  }
  gradient_ = {};
}

void FlatParameter::undo_backward() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    if (!trains_[i]) continue;
    if (gradient_.defined()) {
      parameter.set_grad({});
      set_grad_destination(parameter, {});
    }
    // Not set_grad(), which wants the parameter's own dtype.
    if (kept_[i].defined()) AutogradMeta::of(parameter)->grad = std::exchange(kept_[i], {});
  }
  gradient_ = {};
}

void FlatParameter::take_gradient(const Tensor& row, const std::vector<bool>& used) {
  const NoGrad no_grad;
  Tensor own = row;
  if (row.dtype() != shard_.dtype() && !config_.keep_low_precision) {
    const MemoryCategoryScope category(MemoryCategory::gradients);
    own = row.to(shard_.dtype());
  }
  own.storage().set_padded_slots();
  const std::int64_t first = layout_.shard() * group_->rank();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor parameter = parameters_[i].tensor;
    const Tensor kept = std::exchange(kept_[i], {});
    if (!used[i]) {
      if (kept.defined()) AutogradMeta::of(parameter)->grad = kept;
      continue;
    }
    const FlatLayout::Range part = local(i);
    const std::int64_t at = part.size() > 0 ? layout_.offset(i) + part.begin - first : 0;
    Tensor gradient = own.as_strided({part.size()}, {1}, own.storage_offset() + at);
    if (kept.defined()) gradient.copy_(kept + gradient);
    // Not set_grad(), which wants the parameter's own dtype.
    AutogradMeta::of(parameter)->grad = gradient;
  }
}

}  // namespace cohort::parallel
