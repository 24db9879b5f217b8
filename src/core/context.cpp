#include "cohort/core/context.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/backend.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

// The one thread-local word of the library: the current context, or null before first use.
thread_local Context* current_context = nullptr;

std::shared_ptr<Runtime> process_runtime() {
  static const std::shared_ptr<Runtime> instance = Runtime::make({});
  return instance;
}

// With COHORT_ALLOCATOR_CACHE=0 no runtime caches memory.
RuntimeOptions with_environment(RuntimeOptions options) {
  const char* cache = std::getenv("COHORT_ALLOCATOR_CACHE");
  if (cache != nullptr && std::string_view(cache) == "0") options.cache_memory = false;
  return options;
}

}  // namespace

std::shared_ptr<Runtime> Runtime::make(const RuntimeOptions& options) {
  return std::shared_ptr<Runtime>(new Runtime(with_environment(options)));
}

Runtime::Runtime(const RuntimeOptions& options)
    : options_(options), rank_(options.rank), task_stream_(make_inline_stream("task")) {
  if (options.schedule_seed != 0) {
    scheduler_ = std::make_unique<SeededScheduler>(options.schedule_seed);
  }
  cpu_.compute = scheduler_ ? scheduler_->make_stream("compute") : make_inline_stream("compute");
  cpu_.allocator = make_caching_allocator(Device::cpu(), backend::cpu_backend().memory_source(0),
                                          options.cache_memory || scheduler_ != nullptr);
  cpu_.allocator->set_limit(options.memory_limit);
  meta_.compute = make_inline_stream("meta");
  meta_.allocator =
      make_caching_allocator(Device::meta(), backend::meta_backend().memory_source(0), false);
}

Runtime::DeviceState& Runtime::state(Device device) {
  if (device.type == DeviceType::cpu) return cpu_;
  if (device.type == DeviceType::meta) return meta_;
  const backend::Backend& backend = backend::backend_for(device.type);
  const std::lock_guard lock(mutex_);
  const auto known = accelerators_.find(device);
  if (known != accelerators_.end()) return known->second;
  const int count = backend.device_count();
  check<NotSupported>(count > 0, "[device] there is no usable device for ", device, ": ",
                      backend.why_no_device());
  check(device.index >= 0 && device.index < count, "[device] there is no ", device,
        "; this machine has ", count, " of that type");
  DeviceState fresh{.allocator = make_caching_allocator(device, backend.memory_source(device.index),
                                                        options_.cache_memory),
                    .compute = backend.make_stream(device.index, "compute")};
  return accelerators_.emplace(device, std::move(fresh)).first->second;
}

const std::shared_ptr<Allocator>& Runtime::allocator(Device device) {
  return state(device).allocator;
}

const Stream& Runtime::compute_stream(Device device) {
  return state(device).compute;
}

Stream Runtime::make_stream(Device device, std::string name) {
  if (device.type == DeviceType::meta) return meta_.compute;
  if (device.type != DeviceType::cpu) {
    return backend::backend_for(device.type).make_stream(device.index, std::move(name));
  }
  if (scheduler_) return scheduler_->make_stream(std::move(name));
  return make_worker_stream(std::move(name), {.delay_seed = options_.delay_seed});
}

const Stream& Runtime::collective_stream(Device device) {
  const std::lock_guard lock(mutex_);
  Stream& stream = collective_[device];
  if (!stream) stream = make_stream(device, "collectives");
  return stream;
}

void Runtime::add_failure_listener(const std::weak_ptr<FailureListener>& listener) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [](const auto& known) { return known.expired(); });
  listeners_.push_back(listener);
}

bool Runtime::keep_until_failure(std::shared_ptr<FailureListener> listener) {
  const std::lock_guard lock(mutex_);
  if (failure_scopes_ == 0) return false;
  kept_listeners_.push_back(std::move(listener));
  return true;
}

void Runtime::announce_failure(const std::string& reason) noexcept {
  std::vector<std::weak_ptr<FailureListener>> listeners;
  std::vector<std::shared_ptr<FailureListener>> kept;
  {
    const std::lock_guard lock(mutex_);
    listeners = listeners_;
    kept = std::exchange(kept_listeners_, {});
  }
  for (const auto& weak : listeners) {
    if (const auto listener = weak.lock()) listener->rank_failed(reason);
  }
}

FailureScope::FailureScope(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {
  const std::lock_guard lock(runtime_->mutex_);
  ++runtime_->failure_scopes_;
}

FailureScope::~FailureScope() {
  std::vector<std::shared_ptr<FailureListener>> kept;
  const std::lock_guard lock(runtime_->mutex_);
  // What was kept for an exception that somebody caught on its way goes now.
  if (--runtime_->failure_scopes_ == 0) kept = std::exchange(runtime_->kept_listeners_, {});
}

Context& Context::current() {
  if (current_context == nullptr) [[unlikely]] {
    thread_local Context own(process_runtime());
    current_context = &own;
  }
  return *current_context;
}

Context::Context(std::shared_ptr<Runtime> runtime)
    : init_generator(0),
      generator(0, static_cast<std::uint64_t>(runtime->rank()) + 1),
      runtime_(std::move(runtime)),
      cpu_stream_(runtime_->compute_stream(Device::cpu())) {}

const Stream& Context::stream(Device device) {
  if (device.type == DeviceType::cpu) return cpu_stream_;
  if (override_ && override_.device() == device) return override_;
  return runtime_->compute_stream(device);
}

Context Context::inside_task() const {
  Context copy = *this;
  copy.cpu_stream_ = runtime_->task_stream();
  copy.graph_task = nullptr;
  return copy;
}

void manual_seed(std::uint64_t seed) {
  Context& context = Context::current();
  context.init_generator = Generator(seed);
  // Subsequence 0 is initialisation's.
  context.generator = Generator(seed, static_cast<std::uint64_t>(context.runtime()->rank()) + 1);
}

void reseed_for_rank() {
  Context& context = Context::current();
  context.generator = Generator(context.generator.state().seed,
                                static_cast<std::uint64_t>(context.runtime()->rank()) + 1);
}

ContextScope::ContextScope(Context& context) : previous_(current_context) {
  current_context = &context;
}

ContextScope::~ContextScope() {
  current_context = previous_;
}

StreamScope::StreamScope(const Stream& stream)
    : context_(Context::current()),
      previous_cpu_(context_.cpu_stream_),
      previous_override_(context_.override_) {
  if (stream.device().type == DeviceType::cpu) {
    context_.cpu_stream_ = stream;
  } else {
    context_.override_ = stream;
  }
}

StreamScope::~StreamScope() {
  context_.cpu_stream_ = previous_cpu_;
  context_.override_ = previous_override_;
}

MemoryStats memory_stats(Device device) {
  return Context::current().runtime()->allocator(device)->stats();
}

}  // namespace cohort
