#include "parallel/fsdp_rehearsal.h"

#include <utility>

#include "cohort/core/context.h"

namespace cohort::parallel {

void RecordedCollectives::note(const comm::ProcessGroup& group, comm::Operation operation,
                               const Tensor& largest, bool symmetric, bool in_place,
                               const std::string& owner) {
  FSDPPlan::Collective entry;
  entry.operation = operation;
  entry.owner = owner;
  entry.ranks = group.size();
  if (largest.defined()) {
    entry.dtype = largest.dtype();
    entry.elements = largest.numel();
    entry.logical_bytes = static_cast<std::int64_t>(largest.bytes());
  }
  entry.moved_bytes =
      group.expected_bytes(operation, entry.dtype, entry.elements, symmetric, in_place);
  record_.push_back(std::move(entry));
}

comm::Work RecordedCollectives::all_gather(comm::ProcessGroup& group, const Tensor& out,
                                           const Tensor& in,
                                           const comm::CollectiveOptions& options) {
  // Gathered memory comes from allocate(). What is converted is so in its place.
  note(group, comm::Operation::all_gather, out, group.size() > 1, &out.storage() == &in.storage(),
       options.owner);
  return {};
}

comm::Work RecordedCollectives::reduce_scatter(comm::ProcessGroup& group, const Tensor&,
                                               const Tensor& in, comm::ReduceOp,
                                               const comm::CollectiveOptions& options) {
  note(group, comm::Operation::reduce_scatter, in, is_symmetric(in), false, options.owner);
  return {};
}

comm::Work RecordedCollectives::all_reduce(comm::ProcessGroup& group, const Tensor& tensor,
                                           comm::ReduceOp, const comm::CollectiveOptions& options) {
  note(group, comm::Operation::all_reduce, tensor, is_symmetric(tensor), false, options.owner);
  return {};
}

comm::Work RecordedCollectives::barrier(comm::ProcessGroup& group,
                                        const comm::CollectiveOptions& options) {
  note(group, comm::Operation::barrier, {}, false, false, options.owner);
  return {};
}

// Counted as a group counts it.
Tensor RecordedCollectives::allocate(comm::ProcessGroup& group, std::int64_t bytes) {
  if (group.size() == 1 || bytes == 0) {
    return Tensor::empty({bytes}, {DType::u8, Device::meta(), false});
  }
  const auto allocator = Context::current().runtime()->allocator(Device::meta());
  const MemoryCategory category = Context::current().memory_category;
  allocator->count_external(bytes, category);
  const auto place = std::make_shared<const Storage*>(nullptr);
  auto storage =
      make_intrusive<Storage>(nullptr, static_cast<std::size_t>(bytes), Device::meta(),
                              [place, symmetric = symmetric_, allocator, category, bytes] {
                                symmetric->erase(*place);
                                allocator->count_external(-bytes, category);
                              });
  *place = storage.get();
  symmetric_->insert(storage.get());
  return Tensor(
      make_intrusive<TensorImpl>(std::move(storage), DType::u8, Shape{bytes}, Dims{1}, 0));
}

}  // namespace cohort::parallel
