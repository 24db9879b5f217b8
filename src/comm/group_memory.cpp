// Parts of ProcessGroup that block until all ranks agree: splitting and symmetric memory.

#include <algorithm>
#include <tuple>
#include <vector>

#include "cohort/core/error.h"
#include "comm/process_group_impl.h"

namespace cohort::comm {

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key, const std::string& name) {
  // What each rank wants, gathered to all.
  using Wish = std::pair<std::int32_t, std::int32_t>;
  struct Result {
    std::vector<Wish> wishes;
    std::vector<int> members;
    std::unique_ptr<Transport> transport;
  };
  const auto result = std::make_shared<Result>();
  result->wishes.resize(static_cast<std::size_t>(size()));
  std::string child = name.empty() ? str(impl_->name(), '/', color) : name;
  const Call call{.operation = Operation::split,
                  .dtype = DType::i32,
                  .elements = 2,
                  .timeout = timeout(),
                  .owner = ""};
  const Wish wish{color, key};
  impl_
      ->launch(call, 0,
               [result, wish, child](Transport& transport, const Call& queued) {
                 const std::vector<std::int64_t> counts(static_cast<std::size_t>(transport.size()),
                                                        2);
                 const std::int64_t moved =
                     transport.all_gather(queued, result->wishes.data(), &wish, counts);
                 if (wish.first < 0) return moved;
                 std::vector<int>& members = result->members;
                 for (int r = 0; r < transport.size(); ++r) {
                   if (result->wishes[static_cast<std::size_t>(r)].first == wish.first)
                     members.push_back(r);
                 }
                 std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
                   return result->wishes[static_cast<std::size_t>(a)].second <
                          result->wishes[static_cast<std::size_t>(b)].second;
                 });
                 result->transport = members.size() == 1 ? make_self_transport()
                                                         : transport.split(queued, members, child);
                 return moved;
               })
      .synchronize();
  if (color < 0) return nullptr;
  std::vector<int> world_ranks;
  for (const int r : result->members) world_ranks.push_back(impl_->world_ranks()[r]);
  return make_process_group(std::move(result->transport), std::move(child), timeout(),
                            std::move(world_ranks));
}

bool ProcessGroup::shares_memory() const {
  return size() == 1 || impl_->transport().shares_memory();
}

Tensor ProcessGroup::allocate(const Shape& shape, const TensorOptions& options) {
  return allocate_part(shape, options, false);
}

Tensor ProcessGroup::allocate_shared(const Shape& shape, const TensorOptions& options) {
  check<NotSupported>(shares_memory(), "[allocate_shared] the ranks of group '", name(),
                      "' share no memory; use allocate()");
  return allocate_part(shape, options, true);
}

Tensor ProcessGroup::allocate_part(const Shape& shape, const TensorOptions& options, bool shared) {
  check<NotSupported>(options.device == impl_->device(), "[allocate] group '", name(),
                      "' communicates on ", impl_->device(), ", not on ", options.device);
  std::int64_t whole = static_cast<std::int64_t>(item_size(options.dtype));
  for (const std::int64_t length : shape) {
    check<ShapeError>(length >= 0 && !__builtin_mul_overflow(whole, length, &whole),
                      "[allocate] shape ", shape, " is negative or too large");
  }
  if (size() == 1 || whole == 0) return Tensor::empty(shape, options);
  // The ranks' parts lie side by side: as many bytes from each make the whole.
  const std::int64_t bytes = shared ? (whole + size() - 1) / size() : whole;

  const std::shared_ptr<Allocator>& allocator = impl_->runtime()->allocator(options.device);
  const MemoryCategory category = Context::current().memory_category;
  const MemoryStats stats = allocator->stats();
  std::string refusal;
  if (allocator->limit() > 0 && stats.live_total + bytes > allocator->limit()) {
    refusal = str("the limit of ", allocator->limit(), " bytes, with ", stats.live_total,
                  " of them live; live memory by category:\n", to_string(stats));
  }
  const auto memory = std::make_shared<SymmetricMemory>();
  impl_
      ->launch({.operation = Operation::allocate,
                .dtype = DType::u8,
                .elements = bytes,
                .timeout = timeout()},
               bytes,
               [memory, bytes, refusal](Transport& transport, const Call& queued) {
                 *memory = transport.allocate(queued, static_cast<std::size_t>(bytes), refusal);
                 return std::int64_t{0};
               })
      .synchronize();
  allocator->count_external(bytes, category);
  // Capturing the owner keeps the memory, and the group's mapping of it, as long as the storage.
  auto storage = make_intrusive<Storage>(shared ? memory->first : memory->data,
                                         static_cast<std::size_t>(whole), options.device,
                                         [memory, allocator, category, bytes] {
                                           allocator->count_external(-bytes, category);
                                           memory->owner.reset();
                                         });
  Tensor tensor(make_intrusive<TensorImpl>(std::move(storage), options.dtype, shape,
                                           contiguous_strides(shape), 0));
  if (options.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

}  // namespace cohort::comm
