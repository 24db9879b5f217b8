#include <atomic>
#include <cstring>

#include "cohort/core/error.h"
#include "comm/reduce.h"
#include "comm/transport.h"

namespace cohort::comm {
namespace {

// A group of one: nothing to agree on, nothing to set up. What is left of each operation is its
// arithmetic and its copy.
class SelfTransport final : public Transport {
 public:
  std::string_view name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Device device() const override { return Device::cpu(); }
  std::int64_t eager_send_bytes() const override { return 0; }

  std::int64_t all_reduce(const Call& call, void* data) override {
    return reduce_one(call, data, data, call.elements);
  }
  std::int64_t reduce_scatter(const Call& call, void* out, const void* in,
                              std::span<const std::int64_t>) override {
    return reduce_one(call, out, in, call.elements);
  }
  std::int64_t all_gather(const Call& call, void* out, const void* in,
                          std::span<const std::int64_t>) override {
    return copy(call, out, in);
  }
  std::int64_t broadcast(const Call&, void*) override { return 0; }
  std::int64_t all_to_all(const Call& call, void* out, std::span<const std::int64_t>,
                          const void* in, std::span<const std::int64_t>) override {
    return copy(call, out, in);
  }
  std::int64_t send(const Call&, const void*) override { return no_peer("send"); }
  std::int64_t recv(const Call&, void*) override { return no_peer("recv"); }
  void barrier(const Call&) override {}

  SymmetricMemory allocate(const Call&, std::size_t, const std::string&) override {
    throw NotSupported("[allocate] a group of one allocates ordinary memory");
  }
  std::unique_ptr<Transport> split(const Call&, const std::vector<int>&,
                                   const std::string&) override {
    return make_self_transport();
  }

  std::optional<std::int64_t> expected_bytes(const Call& call, bool, bool in_place) const override {
    switch (call.operation) {
      case Operation::barrier:
      case Operation::all_reduce:
        return 0;
      case Operation::reduce_scatter:
      case Operation::all_gather:
        return in_place ? 0 : bytes_of(call);
      default:
        return std::nullopt;
    }
  }

  void abort(const std::string& reason) noexcept override {
    if (!failed_.exchange(true)) reason_ = reason;
    written_.store(true);
  }
  void abort_text_follows() noexcept override {}
  void leave() noexcept override {}
  std::exception_ptr failure(Operation operation) const override {
    if (!written_.load()) return nullptr;
    return std::make_exception_ptr(
        PeerError(str("[", operation, "] the group was aborted: ", reason_), 0));
  }

 private:
  static std::int64_t reduce_one(const Call& call, void* out, const void* in, std::int64_t count) {
    const Finish finish = finish_for(call.reduce, call.scale, 1);
    if (finish.kind == Finish::Kind::none) return copy(call, out, in);
    reduce({&out, 1}, {&in, 1}, count, call.dtype, call.reduce, finish);
    return bytes_of(call);
  }
  static std::int64_t copy(const Call& call, void* out, const void* in) {
    if (out == in || call.elements == 0) return 0;
    std::memcpy(out, in, static_cast<std::size_t>(bytes_of(call)));
    return bytes_of(call);
  }
  static std::int64_t bytes_of(const Call& call) {
    return call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  }
  [[noreturn]] static std::int64_t no_peer(const char* operation) {
    throw InvalidArgument(str("[", operation, "] a group of one has no other rank"));
  }

  std::atomic<bool> failed_{false};
  std::atomic<bool> written_{false};  // reason_ is complete
  std::string reason_;
};

}  // namespace

std::unique_ptr<Transport> make_self_transport() {
  return std::make_unique<SelfTransport>();
}

}  // namespace cohort::comm
