#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "cohort/comm/store.h"
#include "cohort/core/event.h"
#include "comm/nccl/communicator.h"
#include "comm/transport.h"

namespace cohort::comm::nccl {

// The end of a collective on the device, or the moment in which it was given up. Ready once, for
// one of the two reasons; the error is written before.
class Mark final : public EventImpl {
 public:
  Mark(Event end, std::shared_ptr<WorkState> state, std::string text)
      : end_(std::move(end)), state_(std::move(state)), text_(std::move(text)) {}

  bool ready() const override;
  // Only TimeoutError: what went wrong with the collective is in its WorkState.
  void synchronize(Deadline deadline) override;
  Clock::time_point completed_at() const override;
  void* native() const override { return end_.impl()->native(); }

  // Whether the device is done with it: nobody writes to its tensors any more.
  bool left_device() const { return end_.ready(); }
  // Whether its turn has come: what the stream held before it has run.
  bool begun() const;
  const std::string& text() const { return text_; }
  Operation operation() const;
  // Makes it ready with an error, unless it is ready already.
  void give_up(std::exception_ptr error);

 private:
  const Event end_;
  const std::shared_ptr<WorkState> state_;
  const std::string text_;
  mutable std::mutex mutex_;  // guards what follows
  mutable bool over_ = false;
  std::optional<Clock::time_point> given_up_at_;
};

// Looks after a group's collectives while they are on the device: a thread that sees a passed
// deadline, an error of NCCL's, or the failure of a peer (told through the store), and then ends
// the group on this rank and tells the others. The first failure stands. Thread-safe.
class Watch {
 public:
  Watch(Communicator& communicator, std::shared_ptr<Store> store, int rank, std::string group);
  // Gives up what is still there.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // `held` is owned until the end of the collective.
  Event add(const Call& call, Event end, std::shared_ptr<WorkState> state,
            std::shared_ptr<void> held);
  // Ends the group: rank `culprit` failed with `reason`.
  void abort(int culprit, const std::string& reason) noexcept;
  // The error that ended the group, worded for `operation`; null while it runs.
  std::exception_ptr failure(Operation operation) const;
  // Ends the thread.
  void stop() noexcept;

 private:
  struct Failure {
    bool timeout = false;
    int rank = -1;
    std::string text;
  };
  struct Entry {
    IntrusivePtr<Mark> mark;
    Milliseconds timeout;
    std::optional<Deadline> deadline;  // from when its turn came
    std::shared_ptr<void> held;
  };

  void run();
  // What is wrong now, if anything. `ask_store` where it is time to ask the peers.
  std::optional<Failure> look(bool ask_store);
  std::optional<Failure> overdue();
  // The failure that a peer has told, if any.
  std::optional<Failure> told();
  void end_with(const Failure& failure, bool tell_peers) noexcept;
  void tell(const Failure& failure) noexcept;
  std::exception_ptr worded(const Failure& failure, Operation operation) const;

  Communicator& communicator_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  const std::string group_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Entry> open_;  // in the order of the stream
  std::optional<Failure> failure_;
  bool stopping_ = false;
  bool store_gone_ = false;  // the thread's own
  std::thread thread_;
};

}  // namespace cohort::comm::nccl
