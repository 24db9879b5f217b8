#include "parallel/reducer.h"

#include <algorithm>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"

namespace cohort::parallel {
Reducer::Managed::Managed(std::vector<nn::NamedTensor> given) : parameters(std::move(given)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    try {
      set_grad_manager(parameters[i].tensor, "DDP");
    } catch (...) {
      release(i);
      throw;
    }
  }
}

void Reducer::Managed::release(std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    if (!grad_manager(parameters[i].tensor).empty()) set_grad_manager(parameters[i].tensor, "");
  }
}

Reducer::Reducer(std::vector<nn::NamedTensor> parameters, std::shared_ptr<comm::ProcessGroup> group,
                 const DDPOptions& options, bool collectives_in_backward)
    : managed_(std::move(parameters)),
      parameters_(managed_.parameters),
      group_(std::move(group)),
      options_(options),
      collectives_in_backward_(collectives_in_backward),
      scale_(group_, options.reduce_policy),
      gradients_(parameters_.size()),
      used_anywhere_(parameters_.size(), true) {
  make_buckets();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(register_post_accumulate_grad_hook(
        parameters_[i].tensor, [this, i](const Tensor&) { on_gradient(static_cast<int>(i)); }));
  }
}

Reducer::~Reducer() {
  for (HookHandle& hook : hooks_) hook.remove();
}

void Reducer::make_buckets() {
  buckets_.reset();
  // The first element says whether a rank failed; one per parameter follows, whether it was used.
  const std::size_t status = 1 + (may_be_unused() ? parameters_.size() : 0);
  buckets_ =
      std::make_unique<BucketSet>(parameters_, group_, options_, static_cast<std::int64_t>(status));
}

void Reducer::set_static_graph() {
  check(!begun_once_, "[DDP] set_static_graph() must come before the first backward");
  if (options_.static_graph) return;
  options_.static_graph = true;
  try {
    make_buckets();  // with more status
  } catch (...) {
    options_.static_graph = false;
    make_buckets();
    throw;
  }
}

void Reducer::check_idle(const char* what) const {
  check(stage_ == Stage::idle, "[DDP] ", what, " cannot be registered inside a backward");
}

void Reducer::set_hook(CommHook hook, std::string name) {
  hook_ = std::move(hook);
  hook_name_ = std::move(name);
}

void Reducer::abandon_accumulation() {
  for (Gradient& gradient : gradients_) gradient.used = false;
  scale_.end();
}

void Reducer::rebuild_if_due() {
  if (!rebuild_due_ || stage_ != Stage::idle) return;
  rebuild_due_ = false;
  // Ranks may differ in the order of their gradients; rank 0's counts. What it has not used goes
  // last.
  std::vector<std::int32_t> mine(arrival_.begin(), arrival_.end());
  std::vector<bool> seen(gradients_.size(), false);
  for (const int parameter : arrival_) seen[static_cast<std::size_t>(parameter)] = true;
  for (const BucketSet::Bucket& bucket : buckets_->buckets()) {
    for (const int parameter : bucket.parameters) {
      if (!seen[static_cast<std::size_t>(parameter)]) mine.push_back(parameter);
    }
  }
  const Tensor order = Tensor::from(mine, {static_cast<std::int64_t>(mine.size())});
  group_->broadcast(order, 0, {.owner = "bucket order"}).synchronize();
  const std::vector<std::int32_t> agreed = order.to_vector<std::int32_t>();
  try {
    buckets_->arrange({agreed.begin(), agreed.end()});
    ++rebuilds_;
  } catch (const OutOfMemory& error) {  // on all ranks
    options_.rebuild_buckets = false;
    logging::warn(str("[DDP] buckets stay as they are: ", error.what()));
  }
}

void Reducer::begin_backward(bool synchronise) {
  if (!backward_is_accumulating()) return;
  if (stage_ == Stage::idle) arm();
  if (synchronise && stage_ == Stage::local) {
    stage_ = Stage::synchronising;
    scale_.begin();
    check_static_graph();
    if (options_.overlap) launch_ready();
  }
}

void Reducer::arm() {
  stage_ = Stage::local;
  begun_once_ = true;
  begun_ = Clock::now();
  next_launch_ = 0;
  arrival_.clear();
  kept_.clear();
  flights_.assign(buckets_->buckets().size(), {});
  // The callbacks own the reducer: DDP may be destroyed by a hook of this backward.
  const auto self = shared_from_this();
  queue_callback([self] { self->finish(); },
                 [self](const std::exception_ptr& error) { self->fail(error); });
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    gradient.arrived = false;
    gradient.expected = true;
    if (options_.static_graph) {
      gradient.expected = gradient.in_graph;
    } else if (options_.find_unused_parameters) {
      gradient.expected = backward_reaches(parameters_[i].tensor);
    }
    if (gradient.expected) ++flight_of(static_cast<int>(i)).missing;
  }
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (gradients_[i].early == current_backward()) count_in(static_cast<int>(i));
  }
}

// A step that is not like the first fails before any bucket has gone out.
void Reducer::check_static_graph() {
  if (!options_.static_graph || !graph_known_) return;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const bool reached = backward_reaches(parameters_[i].tensor);
    check<AutogradError>(reached == gradients_[i].in_graph, "[DDP] backward ",
                         reached ? "reaches" : "does not reach", " '", parameters_[i].name,
                         "', unlike the first step (rank ", group_->rank(),
                         "); static_graph needs the same parameters in every step");
  }
}

void Reducer::on_gradient(int parameter) {
  if (stage_ == Stage::idle) {
    // Of a use outside the module. An output of the module may follow in the same backward.
    Gradient& gradient = gradients_[static_cast<std::size_t>(parameter)];
    gradient.early = current_backward();
    gradient.used = true;
    return;
  }
  count_in(parameter);
  if (stage_ == Stage::synchronising && options_.overlap) launch_ready();
}

void Reducer::count_in(int parameter) {
  Gradient& gradient = gradients_[static_cast<std::size_t>(parameter)];
  const std::string& name = parameters_[static_cast<std::size_t>(parameter)].name;
  check<AutogradError>(!gradient.arrived, "[DDP] the gradient of '", name,
                       "' arrived twice in one backward (rank ", group_->rank(),
                       "); a backward inside a hook must not reach DDP's parameters");
  Flight& flight = flight_of(parameter);
  check<AutogradError>(static_cast<std::size_t>(buckets_->bucket_of(parameter)) >= next_launch_,
                       "[DDP] the gradient of '", name,
                       "' came after its bucket had gone out (rank ", group_->rank(),
                       "); a backward inside a hook must not reach DDP's parameters");
  gradient.arrived = true;
  gradient.used = true;
  arrival_.push_back(parameter);
  if (gradient.expected && --flight.missing == 0) flight.ready = Clock::now();
}

void Reducer::launch_ready() {
  while (next_launch_ < flights_.size() && flights_[next_launch_].missing == 0) launch_next();
}

void Reducer::launch_next() {
  const bool last = next_launch_ + 1 == flights_.size();
  const BucketSet::Bucket& bucket = buckets_->buckets()[next_launch_];
  const auto index = static_cast<int>(next_launch_);
  double scale = 1;
  if (!failed_) {
    // What can fail comes first: the bucket counts as sent only when it is.
    scale = scale_.scale();
    check<AutogradError>(!last || !scale_.count_missing(),
                         "[DDP] reduce_policy is count, and count() was not called before this "
                         "backward (rank ",
                         group_->rank(), ")");
    for (const int parameter : bucket.parameters) bring_in(parameter);
  } else {
    scale = scale_.scale_or_one();
  }
  if (last) write_status();
  Flight& flight = flights_[next_launch_];
  if (flight.ready == Clock::time_point()) flight.ready = Clock::now();
  if (hook_) {
    ++next_launch_;
    launch_through_hook(bucket, index, last);
    return;
  }
  flight.work = group_->all_reduce(bucket.memory, scale_.op(),
                                   {.scale = scale, .owner = str("bucket ", index)});
  ++next_launch_;
}

void Reducer::launch_through_hook(const BucketSet::Bucket& bucket, int index, bool last) {
  GradBucket view{.index = index,
                  .is_last = last,
                  .buffer = bucket.gradients,
                  .gradients = bucket.slices,
                  .parameters = {}};
  for (const int parameter : bucket.parameters) {
    view.parameters.push_back(parameters_[static_cast<std::size_t>(parameter)].tensor);
  }
  Flight& flight = flights_[static_cast<std::size_t>(index)];
  flight.hooked = hook_(view);
  check(flight.hooked.valid(), "[DDP] the communication hook '", hook_name_,
        "' returned no work for bucket ", index, " (rank ", group_->rank(),
        "); return BucketWork::after(work, result) or BucketWork::done(result)");
  flight.work = flight.hooked.work();
  if (last && may_be_unused()) {
    status_work_ =
        group_->all_reduce(buckets_->status(), comm::ReduceOp::sum, {.owner = "unused parameters"});
  }
}

// Brings into the bucket what does not live there. What has no gradient counts as zero.
void Reducer::bring_in(int index) {
  Tensor parameter = parameters_[static_cast<std::size_t>(index)].tensor;
  const bool used = gradients_[static_cast<std::size_t>(index)].used;
  Tensor slice = buckets_->slice(index);
  if (buckets_->lives_in_bucket(index)) {
    if (may_be_unused() && !used) kept_.emplace_back(index, slice.clone());
    return;
  }
  if (parameter.grad().defined()) {
    slice.copy_(parameter.grad());
  } else {
    slice.zero_();
  }
  if (used && buckets_->is_view(index)) parameter.set_grad(grad_destination(parameter));
}

void Reducer::finish() {
  if (stage_ != Stage::synchronising) {
    end();
    return;
  }
  const Clock::time_point compute_end = Clock::now();
  const std::string wrong = missing_gradients();
  check<AutogradError>(wrong.empty(), wrong);
  reduce_all();
  if (read_status()) throw_failures_of_others();
  for (std::size_t b = 0; b < flights_.size(); ++b) take_result(static_cast<int>(b));
  for (const auto& [index, value] : kept_) {
    if (!used_anywhere_[static_cast<std::size_t>(index)]) {
      Tensor(buckets_->slice(index)).copy_(value);
    }
  }
  fill_report(compute_end);
  if (options_.static_graph && !graph_known_) {
    for (Gradient& gradient : gradients_) gradient.in_graph = gradient.arrived;
    graph_known_ = true;
  }
  rebuild_due_ = options_.rebuild_buckets && rebuilds_ == 0;
  for (Gradient& gradient : gradients_) gradient.used = false;
  scale_.end();
  end();
}

// Launches what has not been launched, and waits for all of it.
void Reducer::reduce_all() {
  while (next_launch_ < flights_.size()) launch_next();
  for (Flight& flight : flights_) flight.work.wait();
  std::exchange(status_work_, {}).wait();
}

// Gives the reduced gradients to the parameters.
void Reducer::take_result(int index) {
  const BucketSet::Bucket& bucket = buckets_->buckets()[static_cast<std::size_t>(index)];
  if (hook_) {
    const Tensor result = flights_[static_cast<std::size_t>(index)].hooked.wait();
    check(result.defined() && result.numel() == bucket.gradients.numel() &&
              result.dtype() == bucket.dtype,
          "[DDP] the communication hook '", hook_name_, "' must return ", bucket.gradients.numel(),
          " elements of ", bucket.dtype, " for bucket ", index, ", and returned ",
          result.defined() ? str(result.numel(), " of ", result.dtype()) : "nothing");
    if (!result.is_same(bucket.gradients)) Tensor(bucket.gradients).copy_(result.reshape({-1}));
  }
  bucket.memory.storage().bump_version();
  for (const int parameter : bucket.parameters) give_back(parameter);
}

void Reducer::give_back(int index) {
  if (!used_anywhere_[static_cast<std::size_t>(index)]) return;
  Tensor parameter = parameters_[static_cast<std::size_t>(index)].tensor;
  if (buckets_->is_view(index)) {
    if (!buckets_->lives_in_bucket(index)) parameter.set_grad(grad_destination(parameter));
    return;
  }
  if (!parameter.grad().defined()) {
    const MemoryCategoryScope category(MemoryCategory::gradients);
    parameter.set_grad(Tensor::empty_like(parameter));
  }
  Tensor(parameter.grad()).copy_(buckets_->slice(index));
}

void Reducer::end() {
  stage_ = Stage::idle;
  failed_ = false;
  failure_.clear();
}

void Reducer::fill_report(Clock::time_point compute_end) {
  const auto ms = [&](Clock::time_point at) {
    return std::chrono::duration<double, std::milli>(at - begun_).count();
  };
  report_ = {};
  report_.compute_end_ms = ms(compute_end);
  double queue_free = 0;
  for (std::size_t b = 0; b < flights_.size(); ++b) {
    const Flight& flight = flights_[b];
    const comm::WorkTimes times = flight.work.ready() ? flight.work.times() : comm::WorkTimes{};
    // A hook without communication, or a device whose events have not passed yet.
    if (times.enqueued == Clock::time_point()) continue;
    const BucketSet::Bucket& bucket = buckets_->buckets()[b];
    OverlapReport::Bucket& row = report_.buckets.emplace_back();
    row.index = static_cast<int>(b);
    row.bytes = bucket.layout.elements * static_cast<std::int64_t>(item_size(bucket.dtype));
    row.ready_ms = ms(flight.ready);
    row.start_ms = ms(times.started);
    row.end_ms = ms(times.finished);
    row.exposed_ms = std::max(0.0, row.end_ms - std::max(row.start_ms, report_.compute_end_ms));
    row.hidden_ms = row.end_ms - row.start_ms - row.exposed_ms;
    row.bubble_ms = std::max(0.0, row.start_ms - queue_free);
    queue_free = row.end_ms;
    report_.bytes += row.bytes;
    report_.hidden_ms += row.hidden_ms;
    report_.exposed_ms += row.exposed_ms;
    report_.communication_ms += row.end_ms - row.start_ms;
  }
  report_.backward_end_ms = std::max(report_.compute_end_ms, queue_free);
  ++totals_.synchronised_steps;
  totals_.compute_ms += report_.compute_end_ms;
  totals_.communication_ms += report_.communication_ms;
  totals_.overlap_ms += report_.hidden_ms;
}

}  // namespace cohort::parallel
