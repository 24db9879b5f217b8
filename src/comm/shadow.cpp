#include "comm/shadow.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "comm/process_group_impl.h"

namespace cohort::comm {
namespace {

constexpr std::int64_t kLow32 = 0xffffffff;

// Reduces `words` over the ranks, and returns when that is done on this one.
Work meet_over(ProcessGroup::Impl& group, const std::shared_ptr<Announcement>& words) {
  const Call call{.operation = Operation::all_reduce,
                  .reduce = ReduceOp::max,
                  .dtype = DType::i64,
                  .elements = static_cast<std::int64_t>(words->size()),
                  .timeout = group.timeout(),
                  .owner = "join announcement"};
  return group.launch_unannounced(call, static_cast<std::int64_t>(sizeof(Announcement)),
                                  [words](Transport& transport, const Call& queued) {
                                    return transport.all_reduce(queued, words->data());
                                  });
}

// A tensor whose elements change no result of `op`.
Tensor neutral(std::int64_t elements, DType dtype, ReduceOp op) {
  Tensor tensor = Tensor::empty({elements}, {.dtype = dtype});
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return tensor.zero_();
    case ReduceOp::product:
      return tensor.fill_(1);
    case ReduceOp::max:
    case ReduceOp::min:
      break;
  }
  const bool lowest = op == ReduceOp::max;
  if (is_floating(dtype)) return tensor.fill_(lowest ? -INFINITY : INFINITY);
  const auto fill = [&]<typename T>(T least, T most) {
    T* data = tensor.data<T>();
    for (std::int64_t i = 0; i < elements; ++i) data[i] = lowest ? least : most;
  };
  using i64_limits = std::numeric_limits<std::int64_t>;
  using i32_limits = std::numeric_limits<std::int32_t>;
  if (dtype == DType::i64) fill(i64_limits::min(), i64_limits::max());
  if (dtype == DType::i32) fill(i32_limits::min(), i32_limits::max());
  if (dtype == DType::u8) fill(std::uint8_t{0}, std::uint8_t{255});
  if (dtype == DType::boolean) fill(false, true);
  return tensor;
}

// Takes part in what `call` announces.
void take_part(ProcessGroup& group, const Call& call) {
  const CollectiveOptions options{.scale = call.scale, .owner = call.owner};
  const std::int64_t part = call.elements / group.size();
  const bool even = call.elements % group.size() == 0;
  switch (call.operation) {
    case Operation::all_reduce:
      group.all_reduce(neutral(call.elements, call.dtype, call.reduce), call.reduce, options);
      return;
    case Operation::broadcast:
      group.broadcast(Tensor::empty({call.elements}, {.dtype = call.dtype}), call.peer, options);
      return;
    case Operation::barrier:
      group.barrier(options);
      return;
    case Operation::reduce_scatter:
      if (!even) break;
      group.reduce_scatter(Tensor::empty({part}, {.dtype = call.dtype}),
                           neutral(call.elements, call.dtype, call.reduce), call.reduce, options);
      return;
    case Operation::all_gather:
      if (!even) break;
      group.all_gather(Tensor::empty({call.elements}, {.dtype = call.dtype}),
                       Tensor::zeros({part}, {.dtype = call.dtype}), options);
      return;
    default:
      break;
  }
  throw NotSupported(str("[join] a rank that has used up its inputs cannot take part in ",
                         describe(call), " (rank ", group.rank(), ", group ", group.name(),
                         "); inside join use all_reduce, broadcast, barrier, and reduce_scatter "
                         "and all_gather of equal parts"));
}

}  // namespace

Announcement announcement_of(const Call& call) {
  Announcement words{};
  const auto scale = std::bit_cast<std::uint64_t>(call.scale);
  words[0] = 1;
  words[1] = static_cast<std::int64_t>(call.operation);
  words[2] = static_cast<std::int64_t>(call.reduce);
  words[3] = static_cast<std::int64_t>(call.dtype);
  words[4] = call.elements;
  words[5] = call.peer + 1;
  words[6] = static_cast<std::int64_t>(scale >> 32);
  words[7] = static_cast<std::int64_t>(scale & kLow32);
  // As many bytes as the transports compare.
  const std::string owner = call.owner.substr(0, 4 * kOwnerWords - 1);
  for (std::size_t i = 0; i < owner.size(); ++i) {
    words[8 + i / 4] |= static_cast<std::int64_t>(static_cast<unsigned char>(owner[i]))
                        << (8 * (i % 4));
  }
  return words;
}

std::optional<Call> announced_call(const Announcement& words) {
  if (words[0] == 0) return {};
  Call call;
  call.operation = static_cast<Operation>(words[1]);
  call.reduce = static_cast<ReduceOp>(words[2]);
  call.dtype = static_cast<DType>(words[3]);
  call.elements = words[4];
  call.peer = static_cast<int>(words[5] - 1);
  call.scale = std::bit_cast<double>(static_cast<std::uint64_t>(words[6]) << 32 |
                                     static_cast<std::uint64_t>(words[7]));
  for (std::size_t i = 0; i < 4 * kOwnerWords; ++i) {
    const auto byte = static_cast<char>(words[8 + i / 4] >> (8 * (i % 4)) & 0xff);
    if (byte == 0) break;
    call.owner.push_back(byte);
  }
  return call;
}

void ProcessGroup::Impl::announce(const Call& call) {
  meet_over(*this, std::make_shared<Announcement>(announcement_of(call)));
}

void ProcessGroup::announce_collectives(bool on) {
  check<NotSupported>(!on || impl_->device().type == DeviceType::cpu,
                      "[join] uneven inputs are supported on CPU groups only; group '", name(),
                      "' communicates on ", impl_->device());
  impl_->set_announcing(on && size() > 1);
}

bool ProcessGroup::announces_collectives() const {
  return impl_->announcing();
}

std::int64_t ProcessGroup::shadow(const std::function<bool(const std::string&)>& after) {
  announce_collectives(false);
  if (size() == 1) return 0;
  try {
    for (std::int64_t count = 0;; ++count) {
      const auto words = std::make_shared<Announcement>();
      meet_over(*impl_, words).synchronize();
      const std::optional<Call> call = announced_call(*words);
      if (!call) return count;
      take_part(*this, *call);
      if (after && !after(call->owner)) return count + 1;
    }
  } catch (const NotSupported& error) {
    abort(error.what());
    throw;
  }
}

}  // namespace cohort::comm
