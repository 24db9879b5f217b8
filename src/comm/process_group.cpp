#include "cohort/comm/process_group.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "comm/process_group_impl.h"
#include "comm/tensor_checks.h"

namespace cohort::comm {
namespace {

using Counts = std::vector<std::int64_t>;

Call make_call(Operation operation, const Tensor& tensor, const CollectiveOptions& options,
               const ProcessGroup& group) {
  return {.operation = operation,
          .dtype = tensor.dtype(),
          .elements = tensor.numel(),
          .scale = options.scale,
          .timeout = options.timeout.value_or(group.timeout()),
          .owner = options.owner};
}

// A queued collective's hold on a tensor: its storage, without its part in a graph, and the address
// that was current at the call.
struct Held {
  explicit Held(const Tensor& tensor)
      : storage(IntrusivePtr<Storage>(&tensor.storage())), data(tensor.raw()) {}
  IntrusivePtr<Storage> storage;
  void* data;
};

Counts even_counts(std::int64_t elements, int size) {
  return Counts(static_cast<std::size_t>(size), elements / size);
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)), unwinding_at_birth_(std::uncaught_exceptions()) {}

ProcessGroup::~ProcessGroup() {
  if (std::uncaught_exceptions() <= unwinding_at_birth_) {
    impl_->drain_and_leave();
  } else if (impl_->runtime()->keep_until_failure(impl_)) {
    impl_->transport().abort_text_follows();
  } else {
    impl_->rank_failed("an exception left the scope of its group");
  }
}

int ProcessGroup::rank() const {
  return impl_->transport().rank();
}
int ProcessGroup::size() const {
  return impl_->transport().size();
}
const std::string& ProcessGroup::name() const {
  return impl_->name();
}
std::string_view ProcessGroup::backend() const {
  return impl_->transport().name();
}
Milliseconds ProcessGroup::timeout() const {
  return impl_->timeout();
}
std::int64_t ProcessGroup::eager_send_bytes() const {
  return impl_->transport().eager_send_bytes();
}

Work ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, const CollectiveOptions& options) {
  check_tensor(Operation::all_reduce, "tensor", tensor, *impl_);
  check_reduction(Operation::all_reduce, tensor.dtype(), op, options.scale);
  Call call = make_call(Operation::all_reduce, tensor, options, *this);
  call.reduce = op;
  tensor.storage().bump_version();
  return impl_->launch(std::move(call), static_cast<std::int64_t>(tensor.bytes()),
                       [held = Held(tensor)](Transport& transport, const Call& queued) {
                         return transport.all_reduce(queued, held.data);
                       });
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op,
                                  const CollectiveOptions& options) {
  check_tensor(Operation::reduce_scatter, "in", in, *impl_);
  check<ShapeError>(in.numel() % size() == 0, "[reduce_scatter] ", in.numel(),
                    " elements do not divide into ", size(),
                    " equal parts; pad the tensor, or give the counts");
  return reduce_scatter(out, in, even_counts(in.numel(), size()), op, options);
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in,
                                  std::span<const std::int64_t> counts, ReduceOp op,
                                  const CollectiveOptions& options) {
  check_parts(Operation::reduce_scatter, {"in", in}, {"out", out}, counts, *impl_);
  check_reduction(Operation::reduce_scatter, in.dtype(), op, options.scale);
  Call call = make_call(Operation::reduce_scatter, in, options, *this);
  call.reduce = op;
  out.storage().bump_version();
  return impl_->launch(
      std::move(call), static_cast<std::int64_t>(in.bytes()),
      [to = Held(out), from = Held(in), counts = Counts(counts.begin(), counts.end())](
          Transport& transport, const Call& queued) {
        return transport.reduce_scatter(queued, to.data, from.data, counts);
      });
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in,
                              const CollectiveOptions& options) {
  check_tensor(Operation::all_gather, "in", in, *impl_);
  return all_gather(out, in, Counts(static_cast<std::size_t>(size()), in.numel()), options);
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in,
                              std::span<const std::int64_t> counts,
                              const CollectiveOptions& options) {
  check_parts(Operation::all_gather, {"out", out}, {"in", in}, counts, *impl_);
  Call call = make_call(Operation::all_gather, out, options, *this);
  out.storage().bump_version();
  return impl_->launch(
      std::move(call), static_cast<std::int64_t>(out.bytes()),
      [to = Held(out), from = Held(in), counts = Counts(counts.begin(), counts.end())](
          Transport& transport, const Call& queued) {
        return transport.all_gather(queued, to.data, from.data, counts);
      });
}

Work ProcessGroup::broadcast(const Tensor& tensor, int root, const CollectiveOptions& options) {
  check_tensor(Operation::broadcast, "tensor", tensor, *impl_);
  check(root >= 0 && root < size(), "[broadcast] root ", root, " is no rank of a group of ",
        size());
  Call call = make_call(Operation::broadcast, tensor, options, *this);
  call.peer = root;
  if (rank() != root) tensor.storage().bump_version();
  return impl_->launch(std::move(call), static_cast<std::int64_t>(tensor.bytes()),
                       [held = Held(tensor)](Transport& transport, const Call& queued) {
                         return transport.broadcast(queued, held.data);
                       });
}

Work ProcessGroup::all_to_all(const Tensor& out, const Tensor& in,
                              const CollectiveOptions& options) {
  check_tensor(Operation::all_to_all, "in", in, *impl_);
  check<ShapeError>(in.numel() % size() == 0, "[all_to_all] ", in.numel(),
                    " elements do not divide into ", size(), " equal parts; give the counts");
  const Counts counts = even_counts(in.numel(), size());
  return all_to_all(out, counts, in, counts, options);
}

Work ProcessGroup::all_to_all(const Tensor& out, std::span<const std::int64_t> out_counts,
                              const Tensor& in, std::span<const std::int64_t> in_counts,
                              const CollectiveOptions& options) {
  check_exchange(out, out_counts, in, in_counts, *impl_);
  Call call = make_call(Operation::all_to_all, in, options, *this);
  out.storage().bump_version();
  return impl_->launch(std::move(call), static_cast<std::int64_t>(in.bytes()),
                       [to = Held(out), out_counts = Counts(out_counts.begin(), out_counts.end()),
                        from = Held(in), in_counts = Counts(in_counts.begin(), in_counts.end())](
                           Transport& transport, const Call& queued) {
                         return transport.all_to_all(queued, to.data, out_counts, from.data,
                                                     in_counts);
                       });
}

Work ProcessGroup::send(const Tensor& tensor, int destination, const CollectiveOptions& options) {
  check_tensor(Operation::send, "tensor", tensor, *impl_);
  check_peer(Operation::send, destination, *impl_);
  Call call = make_call(Operation::send, tensor, options, *this);
  call.peer = destination;
  return impl_->launch(std::move(call), static_cast<std::int64_t>(tensor.bytes()),
                       [held = Held(tensor)](Transport& transport, const Call& queued) {
                         return transport.send(queued, held.data);
                       });
}

Work ProcessGroup::recv(const Tensor& tensor, int source, const CollectiveOptions& options) {
  check_tensor(Operation::recv, "tensor", tensor, *impl_);
  check_peer(Operation::recv, source, *impl_);
  Call call = make_call(Operation::recv, tensor, options, *this);
  call.peer = source;
  tensor.storage().bump_version();
  return impl_->launch(std::move(call), static_cast<std::int64_t>(tensor.bytes()),
                       [held = Held(tensor)](Transport& transport, const Call& queued) {
                         return transport.recv(queued, held.data);
                       });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) {
  return impl_->launch({.operation = Operation::barrier,
                        .timeout = options.timeout.value_or(timeout()),
                        .owner = options.owner},
                       0, [](Transport& transport, const Call& queued) -> std::int64_t {
                         transport.barrier(queued);
                         return 0;
                       });
}

void ProcessGroup::abort(const std::string& reason) noexcept {
  impl_->transport().abort(reason);
}
std::exception_ptr ProcessGroup::failure() const {
  return impl_->transport().failure(Operation::barrier);
}
std::int64_t ProcessGroup::expected_bytes(Operation operation, DType dtype, std::int64_t elements,
                                          bool symmetric, bool in_place) const {
  Call call;
  call.operation = operation;
  call.dtype = dtype;
  call.elements = elements;
  const auto bytes = impl_->transport().expected_bytes(call, symmetric, in_place);
  check<NotSupported>(bytes.has_value(), "[expected_bytes] ", backend(),
                      " does not know beforehand what ", operation, " moves");
  return *bytes;
}
GroupStats ProcessGroup::stats() const {
  return impl_->stats();
}
void ProcessGroup::reset_stats() {
  impl_->reset_stats();
}

std::shared_ptr<ProcessGroup> make_process_group(std::unique_ptr<Transport> transport,
                                                 std::string name, Milliseconds timeout,
                                                 std::vector<int> world_ranks) {
  check(timeout > Milliseconds(0), "[process_group] the timeout must be positive, got ",
        timeout.count(), " ms");
  const std::shared_ptr<Runtime>& runtime = Context::current().runtime();
  auto impl = std::make_shared<ProcessGroup::Impl>(std::move(transport), runtime, std::move(name),
                                                   timeout, std::move(world_ranks));
  runtime->add_failure_listener(impl);
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace cohort::comm
