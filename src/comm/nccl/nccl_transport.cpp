#include "comm/nccl/nccl_transport.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "backend/cuda/check.h"
#include "backend/cuda/stream.h"
#include "cohort/core/context.h"
#include "cohort/core/tensor.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/watch.h"

namespace cohort::comm::nccl {
namespace {

using backend::cuda::DeviceGuard;
using backend::cuda::handle_of;

// A bool is a byte, 0 or 1: "or" is its maximum, "and" its minimum.
ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
    case DType::boolean:
      return ncclUint8;
    case DType::f32:
      break;
  }
  return ncclFloat32;
}

ncclRedOp_t op_of(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::mean:
      return ncclAvg;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::product:
      return dtype == DType::boolean ? ncclMin : ncclProd;
    case ReduceOp::sum:
      break;
  }
  return dtype == DType::boolean ? ncclMax : ncclSum;
}

// Collectives by NCCL, enqueued on the rank's collective stream of the device.
class NcclTransport final : public Transport, public DeviceQueue {
 public:
  NcclTransport(std::shared_ptr<Store> store, const ncclUniqueId& id, Device device, int rank,
                int size, const std::string& group, Deadline deadline)
      : store_(store),
        device_(device),
        rank_(rank),
        size_(size),
        communicator_(id, device.index, rank, size, group, deadline),
        barrier_word_(Tensor::zeros({1}, {.dtype = DType::i32, .device = device})),
        watch_(communicator_, std::move(store), rank, group) {}
  ~NcclTransport() override { leave(); }

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Device device() const override { return device_; }
  DeviceQueue* device_queue() override { return this; }
  std::int64_t eager_send_bytes() const override { return 0; }

  std::int64_t all_reduce(const Call& call, void* data) override {
    const bool scaled = call.scale != 1;
    check<NotSupported>(!scaled || call.reduce == ReduceOp::sum || call.reduce == ReduceOp::mean,
                        "[all_reduce] a scale with ", call.reduce,
                        " is not available on CUDA yet; multiply the result");
    ncclRedOp_t op = op_of(call.reduce, call.dtype);
    if (scaled) op = make_scaled_sum(call);
    enqueue(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(call.elements), type_of(call.dtype),
                           op, comm, stream);
    });
    if (scaled) {
      enqueue(call, [&](ncclComm_t comm, cudaStream_t) { return ncclRedOpDestroy(op, comm); });
    }
    // What a ring writes; NCCL may choose otherwise, and does not tell.
    return 2 * bytes_of(call) * (size_ - 1) / size_;
  }

  std::int64_t broadcast(const Call& call, void* data) override {
    enqueue(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data, data, static_cast<std::size_t>(bytes_of(call)), ncclUint8,
                           call.peer, comm, stream);
    });
    // In a ring every rank but the last one passes it on.
    return size_ > 1 ? bytes_of(call) : 0;
  }

  void barrier(const Call& call) override {
    void* word = barrier_word_.raw();
    enqueue(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(word, word, 1, ncclInt32, ncclMax, comm, stream);
    });
  }

  std::int64_t reduce_scatter(const Call&, void*, const void*,
                              std::span<const std::int64_t>) override {
    not_filled("reduce_scatter");
  }
  std::int64_t all_gather(const Call&, void*, const void*, std::span<const std::int64_t>) override {
    not_filled("all_gather");
  }
  std::int64_t all_to_all(const Call&, void*, std::span<const std::int64_t>, const void*,
                          std::span<const std::int64_t>) override {
    not_filled("all_to_all");
  }
  std::int64_t send(const Call&, const void*) override { not_filled("send"); }
  std::int64_t recv(const Call&, void*) override { not_filled("recv"); }
  SymmetricMemory allocate(const Call&, std::size_t, const std::string&) override {
    not_filled("allocate");
  }
  std::unique_ptr<Transport> split(const Call&, const std::vector<int>&,
                                   const std::string&) override {
    not_filled("split");
  }

  Event finish(const Call& call, std::shared_ptr<WorkState> state,
               std::shared_ptr<void> held) override {
    return watch_.add(call, call.stream.record(), std::move(state), std::move(held));
  }

  void abort(const std::string& reason) noexcept override { watch_.abort(rank_, reason); }
  // The text comes in a moment, and ends the group then.
  void abort_text_follows() noexcept override {}
  void leave() noexcept override;
  std::exception_ptr failure(Operation operation) const override {
    return watch_.failure(operation);
  }

 private:
  template <typename F>
  void enqueue(const Call& call, F start) {
    const DeviceGuard guard(device_.index);
    const auto at = handle_of(call.stream);
    communicator_.run(comm::name(call.operation), Deadline::after(call.timeout),
                      [&](ncclComm_t comm) { return start(comm, at.stream); });
  }
  // A sum whose addends are multiplied first.
  ncclRedOp_t make_scaled_sum(const Call& call) {
    const double factor = call.reduce == ReduceOp::mean ? call.scale / size_ : call.scale;
    std::uint64_t scalar = 0;
    dispatch(call.dtype, [&](auto zero) {
      const auto rounded = static_cast<decltype(zero)>(factor);
      std::memcpy(&scalar, &rounded, sizeof(rounded));
    });
    ncclRedOp_t op = ncclSum;
    enqueue(call, [&](ncclComm_t comm, cudaStream_t) {
      return ncclRedOpCreatePreMulSum(&op, &scalar, type_of(call.dtype), ncclScalarHostImmediate,
                                      comm);
    });
    return op;
  }
  static std::int64_t bytes_of(const Call& call) {
    return call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  }
  [[noreturn]] static void not_filled(const char* operation) {
    throw NotSupported(str("[", operation,
                           "] is not available on CUDA yet; docs/cuda.md says what "
                           "is"));
  }

  const std::shared_ptr<Store> store_;
  const Device device_;
  const int rank_;
  const int size_;
  Communicator communicator_;
  const Tensor barrier_word_;
  Watch watch_;  // after what it watches: ends first
  bool left_ = false;
};

void NcclTransport::leave() noexcept {
  if (std::exchange(left_, true)) return;
  // Peers may be slower; NCCL's own good-bye waits for them.
  constexpr Milliseconds kGoodbye{10'000};
  watch_.stop();
  if (!watch_.failure(Operation::barrier)) communicator_.close(Deadline::after(kGoodbye));
  try {
    store_->goodbye(kGoodbye);
  } catch (const std::exception&) {
    return;  // gone before us: nobody is left to mistake this for a death
  }
}

}  // namespace

void check_nccl_is_built() {}

std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<Store> store, Device device,
                                               int rank, int size, const std::string& group,
                                               Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  // Throws, saying why, where the machine has no such GPU.
  Context::current().runtime()->compute_stream(device);
  const auto own = std::make_shared<PrefixStore>(str("nccl/", group), std::move(store));
  own->set_on_disconnect("failure", str(rank, " rank ", rank, " died or lost its connection"),
                         deadline.left());
  ncclUniqueId id;
  if (rank == 0) {
    id = make_unique_id();
    own->set("id", {id.internal, sizeof(id.internal)}, deadline.left());
  } else {
    const std::string text = own->get("id", deadline.left());
    check<StoreError>(text.size() == sizeof(id.internal), "[init] the store's NCCL id has ",
                      text.size(), " bytes instead of ", sizeof(id.internal));
    std::memcpy(id.internal, text.data(), text.size());
  }
  return std::make_unique<NcclTransport>(own, id, device, rank, size, group, deadline);
}

}  // namespace cohort::comm::nccl
