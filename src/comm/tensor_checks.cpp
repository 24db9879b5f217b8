#include "comm/tensor_checks.h"

#include <numeric>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  const auto* a_begin = a.raw<const std::byte>();
  const auto* b_begin = b.raw<const std::byte>();
  return a.numel() > 0 && b.numel() > 0 && std::less<>()(a_begin, b_begin + b.bytes()) &&
         std::less<>()(b_begin, a_begin + a.bytes());
}

void check_counts(Operation operation, const char* argument, const Tensor& tensor,
                  std::span<const std::int64_t> counts, int size) {
  check<ShapeError>(counts.size() == static_cast<std::size_t>(size), "[", operation, "] ",
                    counts.size(), " counts for a group of ", size);
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) {
    check<ShapeError>(count >= 0 && !__builtin_add_overflow(sum, count, &sum), "[", operation,
                      "] a count of ", count, " is negative or too large");
  }
  check<ShapeError>(sum == tensor.numel(), "[", operation, "] the counts sum to ", sum,
                    " elements, but '", argument, "' has ", tensor.numel(), " (shape ",
                    tensor.shape(), ", group of ", size, ")");
}

}  // namespace

void check_tensor(Operation operation, const char* argument, const Tensor& tensor,
                  const ProcessGroup::Impl& group) {
  check(tensor.defined(), "[", operation, "] '", argument, "' is an undefined tensor");
  check<NotSupported>(tensor.device() == group.device(), "[", operation, "] '", argument,
                      "' is on ", tensor.device(), ", but group '", group.name(),
                      "' communicates on ", group.device(), " (backend ", group.transport().name(),
                      "); move the tensor there first");
  check(tensor.is_contiguous(), "[", operation, "] '", argument, "' of shape ", tensor.shape(),
        " with strides ", tensor.strides(), " is not contiguous; pass contiguous()");
  check(tensor.storage().has_memory(), "[", operation, "] the memory of '", argument,
        "' has been released");
}

void check_reduction(Operation operation, DType dtype, ReduceOp op, double scale) {
  check<DTypeError>(is_floating(dtype) || (op != ReduceOp::mean && scale == 1), "[", operation,
                    "] ", dtype, " has no mean and no scale; convert to a floating dtype first");
}

void check_parts(Operation operation, const NamedTensor& whole, const NamedTensor& part,
                 std::span<const std::int64_t> counts, const ProcessGroup::Impl& group) {
  check_tensor(operation, whole.name, whole.tensor, group);
  check_tensor(operation, part.name, part.tensor, group);
  check<DTypeError>(whole.tensor.dtype() == part.tensor.dtype(), "[", operation, "] '", whole.name,
                    "' is ", whole.tensor.dtype(), ", but '", part.name, "' is ",
                    part.tensor.dtype());
  check_counts(operation, whole.name, whole.tensor, counts, group.transport().size());
  const auto rank = static_cast<std::size_t>(group.transport().rank());
  check<ShapeError>(part.tensor.numel() == counts[rank], "[", operation, "] '", part.name, "' has ",
                    part.tensor.numel(), " elements, but the part of rank ", rank, " has ",
                    counts[rank]);
  if (overlap(whole.tensor, part.tensor)) {
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank),
                        std::int64_t{0}) *
        static_cast<std::int64_t>(item_size(whole.tensor.dtype()));
    check(part.tensor.raw<std::byte>() == whole.tensor.raw<std::byte>() + before, "[", operation,
          "] '", part.name, "' overlaps '", whole.name, "' elsewhere than at the place of rank ",
          rank);
  }
}

void check_exchange(const Tensor& out, std::span<const std::int64_t> out_counts, const Tensor& in,
                    std::span<const std::int64_t> in_counts, const ProcessGroup::Impl& group) {
  check_tensor(Operation::all_to_all, "out", out, group);
  check_tensor(Operation::all_to_all, "in", in, group);
  check<DTypeError>(out.dtype() == in.dtype(), "[all_to_all] 'out' is ", out.dtype(),
                    ", but 'in' is ", in.dtype());
  check_counts(Operation::all_to_all, "out", out, out_counts, group.transport().size());
  check_counts(Operation::all_to_all, "in", in, in_counts, group.transport().size());
  const auto rank = static_cast<std::size_t>(group.transport().rank());
  check<ShapeError>(out_counts[rank] == in_counts[rank], "[all_to_all] this rank sends itself ",
                    in_counts[rank], " elements but expects ", out_counts[rank]);
  check(!overlap(out, in), "[all_to_all] 'out' and 'in' overlap");
}

void check_peer(Operation operation, int peer, const ProcessGroup::Impl& group) {
  const Transport& transport = group.transport();
  check(peer >= 0 && peer < transport.size() && peer != transport.rank(), "[", operation, "] ",
        peer, " is not another rank of group '", group.name(), "', which has ", transport.size(),
        " ranks (this is rank ", transport.rank(), ")");
}

}  // namespace cohort::comm
