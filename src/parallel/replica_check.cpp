#include "cohort/parallel/replica_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "parallel/hash64.h"

namespace cohort {
namespace {

using parallel::hash64;

// What a rank says of one tensor.
struct Fingerprint {
  std::int64_t layout;  // of its name, dtype and shape
  std::int64_t bytes;   // of its elements, in row-major order
  bool operator==(const Fingerprint&) const = default;
  auto operator<=>(const Fingerprint&) const = default;
};

struct Replica {
  std::vector<std::string> names;  // "parameter 'fc1.weight'", for messages
  std::vector<std::string> tensors;
  std::vector<Fingerprint> prints;
};

Fingerprint fingerprint(const std::string& label, const Tensor& tensor) {
  const std::string layout = str(label, ": ", tensor.dtype(), tensor.shape());
  const Tensor plain =
      (tensor.device() == Device::cpu() ? tensor : tensor.to(Device::cpu())).detach().contiguous();
  Context::current().stream(Device::cpu()).synchronize();
  return {static_cast<std::int64_t>(hash64(layout.data(), layout.size())),
          static_cast<std::int64_t>(hash64(plain.raw(), plain.bytes()))};
}

Replica describe(const nn::Module& module, bool buffers) {
  const NoGrad no_grad;
  Replica replica;
  const auto add = [&](const char* kind, const std::vector<nn::NamedTensor>& list) {
    for (const auto& [name, tensor] : list) {
      if (!tensor.defined()) continue;
      replica.names.push_back(str(kind, " '", name, "'"));
      replica.tensors.push_back(name);
      replica.prints.push_back(fingerprint(replica.names.back(), tensor));
    }
  };
  add("parameter", module.named_parameters());
  if (buffers) add("buffer", module.named_buffers());
  return replica;
}

// Row r holds rank r's `mine`, which is equally long on all ranks.
std::vector<std::vector<std::int64_t>> gather(comm::ProcessGroup& group,
                                              const std::vector<std::int64_t>& mine,
                                              const char* owner) {
  const auto width = static_cast<std::int64_t>(mine.size());
  const Tensor all = Tensor::empty({group.size(), width}, {.dtype = i64});
  group.all_gather(all, Tensor::from(mine, {width}), {.owner = owner}).synchronize();
  const std::vector<std::int64_t> flat = all.to_vector<std::int64_t>();
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t r = 0; r < group.size(); ++r) {
    rows.emplace_back(flat.begin() + r * width, flat.begin() + (r + 1) * width);
  }
  return rows;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// The ranks by what they say; the majority's side first, or rank 0's where there is none.
template <typename Value>
struct Sides {
  explicit Sides(const std::vector<Value>& said) {
    std::map<Value, std::vector<int>> by_value;
    for (std::size_t r = 0; r < said.size(); ++r) {
      by_value[said[r]].push_back(static_cast<int>(r));
    }
    auto largest = by_value.find(said.front());
    for (auto side = by_value.begin(); side != by_value.end(); ++side) {
      if (side->second.size() > largest->second.size()) largest = side;
    }
    has_majority = 2 * largest->second.size() > said.size();
    if (!has_majority) largest = by_value.find(said.front());
    most = largest->second;
    for (std::size_t r = 0; r < said.size(); ++r) {
      if (said[r] != largest->first) others.push_back(static_cast<int>(r));
    }
  }
  std::vector<int> most;
  std::vector<int> others;
  bool has_majority;
};

template <typename Value>
std::string who(const Sides<Value>& sides, const char* in_what = "") {
  return str(list(sides.others), sides.others.size() == 1 ? " differs from " : " differ from ",
             list(sides.most), in_what, sides.has_majority ? "" : ", and no value has a majority");
}

std::string place(const comm::ProcessGroup& group, std::optional<std::int64_t> step) {
  return step ? str(" (step ", *step, ", group '", group.name(), "')")
              : str(" (group '", group.name(), "')");
}

// All ranks know what all have; which tensor is it?
[[noreturn]] void report_tensor(const Replica& replica,
                                const std::vector<std::vector<std::int64_t>>& rows,
                                const std::string& where) {
  const auto said = [&](std::size_t tensor) {
    std::vector<Fingerprint> prints;
    for (const auto& row : rows) prints.push_back({row[2 * tensor], row[2 * tensor + 1]});
    return prints;
  };
  std::optional<std::size_t> first;
  int count = 0;
  for (std::size_t t = 0; t < replica.names.size(); ++t) {
    const std::vector<Fingerprint> prints = said(t);
    if (std::equal(prints.begin() + 1, prints.end(), prints.begin())) continue;
    if (!first) first = t;
    ++count;
  }
  // The hash over all hashes differed, so one of them does.
  check<Error>(first.has_value(),
               "[replica_check] the ranks' hashes changed while they were compared", where);
  const std::vector<Fingerprint> prints = said(*first);
  const bool layout = std::any_of(prints.begin(), prints.end(), [&](const Fingerprint& print) {
    return print.layout != prints.front().layout;
  });
  const Sides<Fingerprint> sides(prints);
  throw ReplicaError(str("[replica_check] the replicas have parted: ", replica.names[*first], ": ",
                         who(sides, layout ? " in name, dtype or shape" : ""), "; ", count, " of ",
                         replica.names.size(), " tensors differ", where,
                         "; a bit flip, a write on one rank only, or a gradient that was not "
                         "averaged: load a checkpoint, or broadcast one rank's values"),
                     replica.tensors[*first], sides.others);
}

void compare(const nn::Module& module, comm::ProcessGroup& group, bool buffers,
             std::optional<std::int64_t> step) {
  if (group.size() == 1) return;
  const Replica replica = describe(module, buffers);
  std::vector<std::int64_t> all;
  for (const Fingerprint& print : replica.prints) {
    all.push_back(print.layout);
    all.push_back(print.bytes);
  }
  const auto combined =
      static_cast<std::int64_t>(hash64(all.data(), all.size() * sizeof(all.front()), all.size()));
  // The step travels in the hash's company: ranks that count differently would otherwise compare
  // parameters of different steps.
  const auto heads = gather(
      group, {combined, static_cast<std::int64_t>(all.size()), step.value_or(0)}, "replica check");
  const auto column = [&](std::size_t c) {
    std::vector<std::int64_t> values;
    for (const auto& head : heads) values.push_back(head[c]);
    return values;
  };
  const std::string where = place(group, step);
  if (const Sides<std::int64_t> steps(column(2)); !steps.others.empty()) {
    throw ReplicaError(str("[replica_check] the ranks check different steps: ", who(steps), where,
                           "; call step() once per step on every rank"),
                       "", steps.others);
  }
  if (const Sides<std::int64_t> counts(column(1)); !counts.others.empty()) {
    throw ReplicaError(str("[replica_check] the modules have different numbers of tensors: ",
                           who(counts), where, "; this rank's has ", replica.names.size()),
                       "", counts.others);
  }
  if (Sides<std::int64_t>(column(0)).others.empty()) return;
  report_tensor(replica, gather(group, all, "replica check, tensor by tensor"), where);
}

}  // namespace

void check_replicas(const nn::Module& module, comm::ProcessGroup& group,
                    const ReplicaCheckOptions& options) {
  compare(module, group, options.buffers, std::nullopt);
}

ReplicaCheck::ReplicaCheck(std::shared_ptr<const nn::Module> module,
                           std::shared_ptr<comm::ProcessGroup> group, ReplicaCheckOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  check(module_ != nullptr && group_ != nullptr,
        "[replica_check] needs a module and a group; one of them is null");
  check(options_.every_steps > 0, "[replica_check] every_steps must be positive, got ",
        options_.every_steps);
}

void ReplicaCheck::step() {
  ++steps_;
  if (steps_ % options_.every_steps == 0) compare(*module_, *group_, options_.buffers, steps_);
}

}  // namespace cohort
