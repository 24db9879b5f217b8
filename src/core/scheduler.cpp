#include "cohort/core/scheduler.h"

#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"

namespace cohort {
namespace {

class ScheduledEvent final : public EventImpl {
 public:
  explicit ScheduledEvent(std::weak_ptr<SeededScheduler::State> state) : state_(std::move(state)) {}

  void complete(const std::exception_ptr& error) {
    done_ = true;
    error_ = error;
    completed_at_ = Clock::now();
  }
  bool ready() const override { return done_; }
  void synchronize(Deadline deadline) override;
  Clock::time_point completed_at() const override { return completed_at_; }

 private:
  std::weak_ptr<SeededScheduler::State> state_;
  bool done_ = false;
  std::exception_ptr error_;
  Clock::time_point completed_at_{};
};

// One step of a stream: exactly one of the three is set.
struct Step {
  Task task;
  std::unique_ptr<Context> context;  // of the code that enqueued the task
  IntrusivePtr<ScheduledEvent> mark;
  Event awaited;
  bool waits = false;
};

struct Lane {
  std::deque<Step> steps;
  std::exception_ptr error;
  bool running = false;  // inside one of its tasks: a nested call must not start the next
};

}  // namespace

struct SeededScheduler::State : std::enable_shared_from_this<SeededScheduler::State> {
  explicit State(std::uint64_t seed) : random(seed), lazy(draw(2) == 0) {}

  std::uint32_t draw(std::uint32_t bound) { return random.reserve(4).bits(0) % bound; }

  void confine() const {
    check<Error>(std::this_thread::get_id() == owner,
                 "[scheduler] used from another thread than the one that made it; a seeded "
                 "scheduler serves one rank's host thread");
  }

  static bool runnable(const Lane& lane) {
    if (lane.running || lane.steps.empty()) return false;
    const Step& front = lane.steps.front();
    return !front.waits || front.awaited.ready();
  }

  // For long stretches one stream runs only when the host waits and no other can, as in the
  // priorities of Burckhardt et al. (A randomized scheduler with probabilistic guarantees of
  // finding bugs, ASPLOS 2010): streams that stay close together all the time hide a lost
  // dependency.
  void hold_back(std::vector<std::size_t>& candidates, bool somebody_waits) {
    constexpr std::uint32_t kStretch = 16;  // steps, on average
    if (draw(kStretch) == 0) slow = draw(static_cast<std::uint32_t>(lanes.size()) + 1);
    if (candidates.size() > 1 || !somebody_waits) std::erase(candidates, slow);
  }

  // Runs one step of a randomly chosen runnable stream; false when there is none. The host may want
  // none in particular, or wait for what may be anywhere.
  bool step(bool somebody_waits) {
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (runnable(*lanes[i])) candidates.push_back(i);
    }
    if (!candidates.empty()) hold_back(candidates, somebody_waits);
    if (candidates.empty()) return false;
    const std::size_t chosen = candidates[draw(static_cast<std::uint32_t>(candidates.size()))];
    order_hash = (order_hash ^ (chosen + 1)) * 1099511628211u;  // FNV-1a
    ++steps;
    run_front(*lanes[chosen]);
    return true;
  }

  static void run_front(Lane& lane) {
    Step step = std::move(lane.steps.front());
    lane.steps.pop_front();
    if (step.mark) {
      step.mark->complete(lane.error);
      return;
    }
    if (lane.error) return;
    lane.running = true;
    try {
      if (step.waits) {
        step.awaited.synchronize(Deadline::after(kStreamTimeout));
      } else {
        const ContextScope scope(*step.context);
        step.task();
      }
    } catch (...) {
      lane.error = std::current_exception();
    }
    lane.running = false;
  }

  // After each enqueue: none to three steps; or mostly none, so that the host runs far ahead.
  void run_some() {
    confine();
    const std::uint32_t some = draw(4);
    for (std::uint32_t n = lazy ? some / 3 : some; n > 0 && step(/*somebody_waits=*/false); --n) {
    }
  }

  template <typename Condition>
  void run_until(Condition condition, Deadline deadline) {
    confine();
    while (!condition()) {
      check<TimeoutError>(!deadline.passed(), "[scheduler] deadline passed with work left");
      check<Error>(step(/*somebody_waits=*/true),
                   "[scheduler] no stream can go on: streams wait for each other in a circle, or "
                   "for an event that nobody enqueued");
    }
  }

  std::thread::id owner = std::this_thread::get_id();
  Generator random;
  const bool lazy;
  std::size_t slow = ~std::size_t{0};  // the stream that is held back; beyond the last: none
  std::vector<std::shared_ptr<Lane>> lanes;
  std::uint64_t steps = 0;
  std::uint64_t order_hash = 14695981039346656037u;
};

namespace {

void ScheduledEvent::synchronize(Deadline deadline) {
  if (!done_) {
    const auto state = state_.lock();
    check<Error>(state != nullptr, "[scheduler] the scheduler of an awaited event is gone");
    state->run_until([&] { return done_; }, deadline);
  }
  if (error_) std::rethrow_exception(error_);
}

class ScheduledStream final : public StreamImpl {
 public:
  ScheduledStream(std::string name, std::shared_ptr<SeededScheduler::State> state)
      : StreamImpl(Device::cpu(), std::move(name), /*runs_inline=*/false),
        state_(std::move(state)),
        lane_(std::make_shared<Lane>()) {
    state_->lanes.push_back(lane_);
  }

  ~ScheduledStream() override {
    // What was enqueued still runs; errors have nobody left to hear them.
    while (!lane_->running && !lane_->steps.empty() && state_->step(/*somebody_waits=*/true)) {
    }
    std::erase(state_->lanes, lane_);
  }

  void enqueue(Task task) override {
    Step step;
    step.task = std::move(task);
    step.context = std::make_unique<Context>(Context::current().inside_task());
    push(std::move(step));
  }
  Event record() override {
    auto mark = make_intrusive<ScheduledEvent>(state_);
    Step step;
    step.mark = mark;
    push(std::move(step));
    return Event(mark);
  }
  void wait(const Event& event) override {
    Step step;
    step.awaited = event;
    step.waits = true;
    push(std::move(step));
  }
  void synchronize(Deadline deadline) override {
    state_->run_until([&] { return lane_->steps.empty(); }, deadline);
    if (std::exception_ptr error = std::exchange(lane_->error, nullptr)) {
      std::rethrow_exception(error);
    }
  }

 private:
  void push(Step step) {
    state_->confine();
    lane_->steps.push_back(std::move(step));
    state_->run_some();
  }

  std::shared_ptr<SeededScheduler::State> state_;
  std::shared_ptr<Lane> lane_;
};

}  // namespace

SeededScheduler::SeededScheduler(std::uint64_t seed) : state_(std::make_shared<State>(seed)) {}
SeededScheduler::~SeededScheduler() = default;

Stream SeededScheduler::make_stream(std::string name) {
  state_->confine();
  return Stream(make_intrusive<ScheduledStream>(std::move(name), state_));
}

std::uint64_t SeededScheduler::steps() const {
  return state_->steps;
}
std::uint64_t SeededScheduler::order_hash() const {
  return state_->order_hash;
}

}  // namespace cohort
