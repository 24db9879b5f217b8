#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "cohort/core/context.h"
#include "cohort/core/deadline.h"
#include "cohort/data/data_loader.h"

namespace cohort::data {
namespace {

// More than the elements any epoch draws; the generator's 2^64 blocks hold 2^26 such ranges.
constexpr std::uint64_t kReservedNumbers = std::uint64_t{1} << 40;

}  // namespace

// What both threads see is guarded by mutex_. The worker waits on room_ until the consumer has
// taken an item or stops it, which its destructor does in any case; the consumer waits on item_.
class Prefetcher::Impl {
 public:
  Impl(Make make, std::int64_t count, std::int64_t ahead, Milliseconds timeout)
      : make_(std::move(make)),
        count_(count),
        ahead_(static_cast<std::size_t>(ahead)),
        timeout_(timeout),
        context_(Context::current()) {
    Context& caller = Context::current();
    if (caller.runtime()->scheduler() != nullptr) ahead_ = 0;
    if (ahead_ > 0) {
      // The worker has no part in what is under way in the caller's thread: streams, a backward.
      context_ = Context(caller.runtime());
      context_.memory_category = caller.memory_category;
    }
    context_.grad_enabled = false;
    context_.graph_task = nullptr;
    context_.generator.set_state(caller.generator.reserve(kReservedNumbers));
    if (ahead_ > 0 && count_ > 0) worker_ = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_one();
    if (worker_.joinable()) worker_.join();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<void> next() {
    if (taken_ == count_) return nullptr;
    std::shared_ptr<void> item = ahead_ > 0 ? take() : make_here();
    ++taken_;
    return item;
  }

 private:
  std::shared_ptr<void> make_here() {
    const ContextScope scope(context_);
    const std::int64_t index = taken_;
    taken_ = count_;  // should the item fail
    std::shared_ptr<void> item = make_(index);
    taken_ = index;
    return item;
  }

  std::shared_ptr<void> take() {
    std::unique_lock lock(mutex_);
    const bool came = item_.wait_until(lock, Deadline::after(timeout_).at(),
                                       [this] { return !ready_.empty() || error_; });
    check<TimeoutError>(came, "[DataLoader] batch ", taken_, " of ", count_,
                        " did not come within ", timeout_.count(),
                        " ms; the dataset is slow, or it hangs");
    if (ready_.empty()) {
      taken_ = count_;
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    std::shared_ptr<void> item = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    room_.notify_one();
    return item;
  }

  // The worker's thread.
  void run() {
    const ContextScope scope(context_);
    try {
      for (std::int64_t index = 0; index < count_ && has_room(); ++index) {
        std::shared_ptr<void> item = make_(index);
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(item));
        item_.notify_one();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      item_.notify_one();
    }
  }

  // Waits until the next item may be made; false when none is wanted any more.
  bool has_room() {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return stop_ || ready_.size() < ahead_; });
    return !stop_;
  }

  Make make_;
  std::int64_t count_;
  std::size_t ahead_;
  Milliseconds timeout_;
  Context context_;         // of the thread that makes items
  std::int64_t taken_ = 0;  // the consumer's
  std::mutex mutex_;
  std::condition_variable item_;
  std::condition_variable room_;
  std::deque<std::shared_ptr<void>> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread worker_;
};

Prefetcher::Prefetcher(Make make, std::int64_t count, std::int64_t ahead, Milliseconds timeout)
    : impl_(std::make_unique<Impl>(std::move(make), count, ahead, timeout)) {}

Prefetcher::~Prefetcher() = default;

std::shared_ptr<void> Prefetcher::next() {
  return impl_->next();
}

}  // namespace cohort::data
