// A CPU stream with a thread of its own.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/stream.h"

namespace cohort {
namespace {

// Set once by the stream that recorded it, waited for by anybody.
class HostEvent final : public EventImpl {
 public:
  explicit HostEvent(std::string stream_name) : stream_name_(std::move(stream_name)) {}

  void complete(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(error);
      completed_at_ = Clock::now();
    }
    changed_.notify_all();
  }

  bool ready() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void synchronize(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.at(), [&] { return done_; })) {
      throw TimeoutError(
          str("[event] work on stream '", stream_name_, "' did not finish before the deadline"));
    }
    if (error_) std::rethrow_exception(error_);
  }

  Clock::time_point completed_at() const override {
    const std::lock_guard lock(mutex_);
    return completed_at_;
  }

 private:
  std::string stream_name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  Clock::time_point completed_at_{};
};

// The queue outlives the stream's handle until its thread has run what was enqueued.
class Queue {
 public:
  Queue(std::string name, std::uint64_t delay_seed) : name_(std::move(name)), delay_(delay_seed) {}

  // A mark completes even after an error, and carries it; other tasks are dropped then. A task
  // comes with the context of the thread that enqueued it.
  struct Entry {
    Task task;
    std::unique_ptr<Context> context;
    IntrusivePtr<HostEvent> mark;
  };

  void push(Entry entry) {
    {
      const std::lock_guard lock(mutex_);
      entries_.push_back(std::move(entry));
    }
    changed_.notify_one();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !entries_.empty(); });
      if (entries_.empty()) return;
      Entry entry = std::move(entries_.front());
      entries_.pop_front();
      const std::exception_ptr error = error_;
      lock.unlock();
      std::exception_ptr fresh;
      if (entry.mark) {
        entry.mark->complete(error);
      } else if (!error) {
        fresh = run_one(entry);
      }
      entry = Entry{};  // what the task owned goes before the next one starts
      lock.lock();
      // Only an error of this task: the one before may have been taken meanwhile.
      if (fresh) error_ = fresh;
    }
  }

  std::exception_ptr take_error() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }

  const std::string& name() const { return name_; }

 private:
  std::exception_ptr run_one(Entry& entry) {
    if (delay_.state().seed != 0) {
      const std::uint32_t microseconds = delay_.reserve(4).bits(0) % 200;
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    }
    try {
      const ContextScope scope(*entry.context);
      entry.task();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  const std::string name_;
  Generator delay_;  // the worker's own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool closed_ = false;
  std::exception_ptr error_;
};

class WorkerStream final : public StreamImpl {
 public:
  WorkerStream(std::string given, const WorkerStreamOptions& options)
      : StreamImpl(Device::cpu(), std::move(given), /*runs_inline=*/false),
        queue_(std::make_shared<Queue>(name(), options.delay_seed)),
        thread_([queue = queue_] { queue->run(); }) {}

  ~WorkerStream() override {
    queue_->close();
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // the last handle went inside one of the stream's own tasks
    } else {
      thread_.join();
    }
  }

  void enqueue(Task task) override {
    queue_->push({.task = std::move(task),
                  .context = std::make_unique<Context>(Context::current().inside_task()),
                  .mark = {}});
  }

  Event record() override {
    auto mark = make_intrusive<HostEvent>(name());
    queue_->push({.task = {}, .context = {}, .mark = mark});
    return Event(mark);
  }

  void wait(const Event& event) override {
    if (!event.impl()) return;
    // Also when it is ready already: its error belongs into this stream's order.
    enqueue([event] { event.synchronize(Deadline::after(kStreamTimeout)); });
  }

  void synchronize(Deadline deadline) override {
    const Event mark = record();
    try {
      mark.synchronize(deadline);
    } catch (const TimeoutError&) {
      throw;
    } catch (...) {
      // The caller has been told: the stream starts afresh.
    }
    if (std::exception_ptr error = queue_->take_error()) std::rethrow_exception(error);
  }

 private:
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace

Stream make_worker_stream(std::string name, WorkerStreamOptions options) {
  return Stream(make_intrusive<WorkerStream>(std::move(name), options));
}

}  // namespace cohort
