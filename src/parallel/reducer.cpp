#include "parallel/reducer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort::parallel {
namespace {

// "layers.0" of "layers.0.weight".
std::string module_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::vector<BucketItem> make_items(const std::vector<nn::NamedTensor>& parameters) {
  std::vector<BucketItem> items;
  std::map<std::string, int> groups;
  for (const auto& [name, tensor] : parameters) {
    // A parameter of the root has no module that it shares its moment with.
    const std::string module = module_of(name);
    const auto next = static_cast<int>(groups.size());
    const int group = groups.try_emplace(module.empty() ? "." + name : module, next).first->second;
    items.push_back({.dtype = tensor.dtype(), .numel = tensor.numel(), .group = group});
  }
  return items;
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

Reducer::Reducer(std::vector<nn::NamedTensor> parameters, std::shared_ptr<comm::ProcessGroup> group,
                 const DDPOptions& options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(options),
      items_(make_items(parameters_)),
      places_(parameters_.size()) {
  build(assignment(initial_order()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(register_post_accumulate_grad_hook(
        parameters_[i].tensor, [this, i](const Tensor&) { on_gradient(static_cast<int>(i)); }));
  }
}

Reducer::~Reducer() {
  for (HookHandle& hook : hooks_) hook.remove();
  if (!options_.gradient_as_bucket_view) return;
  // The gradients stay where they are, and keep the buckets' memory alive while they do.
  for (const auto& [name, tensor] : parameters_) {
    if (tensor.requires_grad()) set_grad_destination(tensor, {});
  }
}

std::vector<int> Reducer::initial_order() const {
  std::vector<int> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.reverse_registration) std::reverse(order.begin(), order.end());
  return order;
}

std::vector<std::vector<int>> Reducer::assignment(const std::vector<int>& order) const {
  constexpr double kMiB = 1024.0 * 1024.0;
  return assign_buckets(
      items_, order,
      {.bytes = options_.bucket_cap_mb * kMiB, .last_bytes = options_.last_bucket_cap_mb * kMiB});
}

void Reducer::build(const std::vector<std::vector<int>>& assignment) {
  release_buckets();
  // Gradients that are alive keep the old buckets until they have moved.
  const std::vector<Bucket> old = std::exchange(buckets_, {});
  for (const std::vector<int>& parameters : assignment) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.parameters = parameters;
    bucket.dtype = items_[static_cast<std::size_t>(parameters.front())].dtype;
    bucket.layout = lay_out_bucket(items_, parameters);
    make_bucket(bucket);
    for (std::size_t slot = 0; slot < parameters.size(); ++slot) {
      places_[static_cast<std::size_t>(parameters[slot])] = {static_cast<int>(buckets_.size()) - 1,
                                                             static_cast<int>(slot), false};
    }
  }
}

// Before buckets are built anew: where no gradient lives in them, the old ones make room first.
void Reducer::release_buckets() {
  const bool alive = std::any_of(parameters_.begin(), parameters_.end(),
                                 [](const auto& named) { return named.tensor.grad().defined(); });
  if (alive && options_.gradient_as_bucket_view) return;
  for (const auto& named : parameters_) set_grad_destination(named.tensor, {});
  buckets_.clear();
}

void Reducer::make_bucket(Bucket& bucket) {
  const bool views = options_.gradient_as_bucket_view;
  const MemoryCategoryScope category(views ? MemoryCategory::gradients
                                           : MemoryCategory::communication);
  const Device device =
      parameters_[static_cast<std::size_t>(bucket.parameters.front())].tensor.device();
  bucket.memory = group_->allocate({bucket.layout.elements}, {bucket.dtype, device, false});
  bucket.memory.zero_();  // the padding is reduced too, and must stay finite
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    const Tensor& parameter = parameters_[static_cast<std::size_t>(bucket.parameters[slot])].tensor;
    bucket.slices.push_back(bucket.memory.as_strided(
        parameter.shape(), contiguous_strides(parameter.shape()), bucket.layout.offsets[slot]));
    if (views) set_grad_destination(parameter, bucket.slices.back());
  }
}

void Reducer::rebuild_if_due() {
  if (!rebuild_due_ || armed_) return;
  rebuild_due_ = false;
  // Ranks may differ in the order of their gradients; rank 0's counts.
  const std::vector<std::int32_t> mine(arrival_.begin(), arrival_.end());
  const Tensor order = Tensor::from(mine, {static_cast<std::int64_t>(mine.size())});
  group_->broadcast(order, 0, {.owner = "bucket order"}).synchronize();
  const std::vector<std::int32_t> agreed = order.to_vector<std::int32_t>();
  const std::vector<std::vector<int>> wanted = assignment({agreed.begin(), agreed.end()});
  const bool same =
      std::equal(wanted.begin(), wanted.end(), buckets_.begin(), buckets_.end(),
                 [](const std::vector<int>& a, const Bucket& b) { return a == b.parameters; });
  if (!same) build(wanted);
  ++rebuilds_;
}

void Reducer::begin_backward(bool synchronise) {
  if (!backward_is_accumulating()) return;
  if (!armed_) arm();
  if (synchronise && !synchronise_) {
    synchronise_ = true;
    if (options_.overlap) launch_ready();
  }
}

void Reducer::arm() {
  armed_ = true;
  synchronise_ = false;
  next_launch_ = 0;
  arrival_.clear();
  begun_ = Clock::now();
  for (Bucket& bucket : buckets_) {
    bucket.missing = static_cast<int>(bucket.parameters.size());
    bucket.work = {};
  }
  for (Place& place : places_) place.arrived = false;
  queue_callback([this] { finish(); }, [this](const std::exception_ptr& error) { fail(error); });
}

void Reducer::on_gradient(int parameter) {
  if (!armed_) return;
  Place& place = places_[static_cast<std::size_t>(parameter)];
  check<AutogradError>(!place.arrived, "[DDP] the gradient of '",
                       parameters_[static_cast<std::size_t>(parameter)].name,
                       "' arrived twice in one backward (rank ", group_->rank(),
                       "); a backward inside a hook must not reach DDP's parameters");
  place.arrived = true;
  arrival_.push_back(parameter);
  Bucket& bucket = buckets_[static_cast<std::size_t>(place.bucket)];
  if (--bucket.missing > 0) return;
  bucket.ready = Clock::now();
  if (synchronise_ && options_.overlap) launch_ready();
}

void Reducer::launch_ready() {
  while (next_launch_ < buckets_.size() && buckets_[next_launch_].missing == 0) {
    launch(buckets_[next_launch_], static_cast<int>(next_launch_));
    ++next_launch_;
  }
}

void Reducer::launch(Bucket& bucket, int index) {
  collect(bucket);
  bucket.work =
      group_->all_reduce(bucket.memory, comm::ReduceOp::mean, {.owner = str("bucket ", index)});
}

// Brings into the bucket what does not live there. A parameter of the graph that nothing flowed to
// has a gradient of zero here, and may have another elsewhere.
void Reducer::collect(Bucket& bucket) {
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    Tensor parameter = parameters_[static_cast<std::size_t>(bucket.parameters[slot])].tensor;
    const Tensor& gradient = parameter.grad();
    const bool views = options_.gradient_as_bucket_view;
    if (views && gradient.defined() && gradient.is_same(grad_destination(parameter))) continue;
    Tensor slice = bucket.slices[slot];
    if (gradient.defined()) {
      slice.copy_(gradient);
    } else {
      slice.zero_();
    }
    if (views) parameter.set_grad(grad_destination(parameter));
  }
}

// Gives the reduced gradients to the parameters.
void Reducer::distribute(Bucket& bucket) {
  if (options_.gradient_as_bucket_view) {
    bucket.memory.storage().bump_version();
    return;
  }
  for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
    Tensor parameter = parameters_[static_cast<std::size_t>(bucket.parameters[slot])].tensor;
    if (!parameter.grad().defined()) {
      const MemoryCategoryScope category(MemoryCategory::gradients);
      parameter.set_grad(Tensor::empty(parameter.shape(), parameter.options()));
    }
    Tensor(parameter.grad()).copy_(bucket.slices[slot]);
  }
}

void Reducer::require_all_gradients() {
  std::string missing;
  int count = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].arrived) continue;
    // A long list helps nobody: the first ten tell which part of the model it is.
    if (++count <= 10) missing += (count > 1 ? ", '" : "'") + parameters_[i].name + "'";
  }
  check<AutogradError>(count == 0, "[DDP] backward gave no gradient to ", count, " of ",
                       places_.size(), " parameters: ", missing, count > 10 ? ", …" : "", " (rank ",
                       group_->rank(), ", group ", group_->name(),
                       "); they took no part in the loss. Leave them out of the model, or freeze "
                       "them before DDP is built");
}

void Reducer::finish() {
  if (!synchronise_) {
    disarm();
    return;
  }
  const Clock::time_point compute_end = Clock::now();
  require_all_gradients();
  launch_ready();
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    distribute(bucket);
  }
  fill_report(compute_end);
  rebuild_due_ = options_.rebuild_buckets && rebuilds_ == 0;
  disarm();
}

void Reducer::fail(const std::exception_ptr& error) {
  const bool others_wait = synchronise_;
  disarm();
  if (others_wait) group_->abort(str("in backward: ", what_of(error)));
}

void Reducer::disarm() {
  armed_ = false;
  synchronise_ = false;
}

void Reducer::fill_report(Clock::time_point compute_end) {
  const auto ms = [&](Clock::time_point at) {
    return std::chrono::duration<double, std::milli>(at - begun_).count();
  };
  report_ = {};
  report_.compute_end_ms = ms(compute_end);
  double queue_free = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    if (!bucket.work.ready()) continue;  // a device whose events have not passed yet
    const comm::WorkTimes times = bucket.work.times();
    OverlapReport::Bucket& row = report_.buckets.emplace_back();
    row.index = static_cast<int>(b);
    row.bytes = bucket.layout.elements * static_cast<std::int64_t>(item_size(bucket.dtype));
    row.ready_ms = ms(bucket.ready);
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
}

}  // namespace cohort::parallel
