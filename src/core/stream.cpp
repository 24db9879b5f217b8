#include "cohort/core/stream.h"

#include <atomic>

namespace cohort {
namespace {

std::uint64_t next_stream_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

class InlineStream final : public StreamImpl {
 public:
  explicit InlineStream(std::string name)
      : StreamImpl(Device::cpu(), std::move(name), /*runs_inline=*/true) {}

  void enqueue(Task task) override { task(); }
  // Everything enqueued has run already.
  Event record() override { return Event(); }
  void wait(const Event& event) override { event.synchronize(Deadline::after(kStreamTimeout)); }
  void synchronize(Deadline) override {}
};

}  // namespace

StreamImpl::StreamImpl(Device device, std::string name, bool runs_inline)
    : device_(device), name_(std::move(name)), id_(next_stream_id()), runs_inline_(runs_inline) {}

Stream make_inline_stream(std::string name) {
  return Stream(make_intrusive<InlineStream>(std::move(name)));
}

}  // namespace cohort
