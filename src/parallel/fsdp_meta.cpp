#include "parallel/fsdp_meta.h"

#include <algorithm>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "parallel/fsdp_unit.h"

namespace cohort::parallel {
namespace {

std::vector<nn::NamedTensor> own_tensors(const nn::Module& module) {
  std::vector<nn::NamedTensor> own = module.named_parameters(false);
  for (nn::NamedTensor& buffer : module.named_buffers(false)) own.push_back(std::move(buffer));
  return own;
}

}  // namespace

bool is_on_meta_device(const nn::NamedTensor& named) {
  return named.tensor.device().type == DeviceType::meta;
}

bool is_on_meta(const nn::Module& module) {
  const std::vector<nn::NamedTensor> parameters = module.named_parameters();
  const std::vector<nn::NamedTensor> buffers = module.named_buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_on_meta_device) ||
         std::any_of(buffers.begin(), buffers.end(), is_on_meta_device);
}

MetaInitializer::MetaInitializer(nn::Module& root, const FSDPOptions& options,
                                 RankAgreement& agreement)
    : root_(root),
      options_(options),
      generator_(Context::current().init_generator.state()),
      active_(is_on_meta(root)) {
  for (const nn::NamedModule& named : root.named_modules()) names_[named.module] = named.name;
  if (!options.sync_module_states) return;
  const std::vector<std::uint8_t> ranks = agreement.exchange(active_ ? 1 : 0);
  resets_ = ranks.front() != 0;
  active_ = std::find(ranks.begin(), ranks.end(), 1) != ranks.end();
}

void MetaInitializer::to_meta(const Made& made) {
  const Tensor meta = Tensor::empty(made.shape, {made.dtype, Device::meta(), false});
  made.tensor.impl()->swap_view(*meta.impl());
}

// What keeps the module's tensors from having values now; empty when nothing does.
std::string MetaInitializer::problems_of(nn::Module& module) {
  const std::vector<nn::NamedTensor> own = own_tensors(module);
  std::vector<nn::NamedTensor> fresh;
  std::vector<std::string> real;
  const std::string& name = names_.at(&module);
  const auto full_name = [&](const std::string& tensor) {
    return name.empty() ? tensor : name + '.' + tensor;
  };
  for (const nn::NamedTensor& named : own) {
    const auto is_made = [&](const Made& made) { return made.tensor.is_same(named.tensor); };
    if (is_on_meta_device(named)) {
      fresh.push_back(named);
    } else if (std::none_of(made_.begin(), made_.end(), is_made)) {
      real.push_back(named.name);
    }
  }
  if (fresh.empty()) return {};
  const bool by_module = resets_ && !options_.param_init_fn;
  if (by_module && !real.empty()) {
    return str("; '", full_name(fresh.front().name), "' is on the meta device and '",
               full_name(real.front()),
               "' is not: reset_parameters() would overwrite it, give param_init_fn");
  }
  for (const nn::NamedTensor& named : fresh) {
    made_.push_back({named.tensor, named.tensor.shape(), named.tensor.dtype()});
    const MemoryCategoryScope category(MemoryCategory::parameters);
    const Tensor memory = Tensor::empty(named.tensor.shape(), {named.tensor.dtype()});
    named.tensor.impl()->swap_view(*memory.impl());
  }
  std::string problems;
  if (!resets_) {
    for (const nn::NamedTensor& named : fresh) {
      if (!is_ignored(options_, full_name(named.name))) continue;
      problems += str("; '", full_name(named.name), "' is ignored, so rank 0 does not send it");
    }
    return problems;
  }
  const NoGrad no_grad;
  if (options_.param_init_fn) {
    options_.param_init_fn(module);
  } else {
    module.reset_parameters();
  }
  // Whatever writes a tensor counts a version.
  for (const nn::NamedTensor& named : fresh) {
    if (named.tensor.numel() > 0 && named.tensor.storage().version() == 0) {
      problems += str("; '", full_name(named.name), "'");
    }
  }
  return problems;
}

void MetaInitializer::initialise(nn::Module& module) {
  if (!active_) return;
  std::string problems = problems_of(module);
  if (problems.empty()) return;
  // The rest of the list, of modules that come later. Their tensors go back at once.
  bool later = false;
  root_.apply([&](nn::Module& other) {
    if (later) {
      const std::size_t before = made_.size();
      problems += problems_of(other);
      for (; made_.size() > before; made_.pop_back()) to_meta(made_.back());
    }
    later = later || &other == &module;
  });
  throw InvalidArgument(str(
      "[FSDP] parameters or buffers on the meta device that ",
      options_.param_init_fn ? "param_init_fn does" : "their modules' reset_parameters() do",
      " not fill (rank ", Context::current().runtime()->rank(), ")", problems,
      "; override reset_parameters() for all of a module's own tensors, or give param_init_fn"));
}

void MetaInitializer::undo() noexcept {
  for (const Made& made : made_) to_meta(made);
  Context::current().init_generator.set_state(generator_);
}

}  // namespace cohort::parallel
