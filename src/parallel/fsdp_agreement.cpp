#include "parallel/fsdp_agreement.h"

#include <algorithm>
#include <utility>

#include "cohort/core/context.h"

namespace cohort::parallel {
namespace {

enum : std::uint8_t { kFine, kOutOfMemory, kOther };

std::uint8_t code_of(const std::exception_ptr& error) {
  if (!error) return kFine;
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory&) {
    return kOutOfMemory;
  } catch (...) {
    return kOther;
  }
}

}  // namespace

bool is_agreed(const std::exception_ptr& error) noexcept {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const AgreedOutOfMemory&) {
    return true;
  } catch (...) {
    return false;
  }
  return false;
}

RankAgreement::RankAgreement(std::shared_ptr<comm::ProcessGroup> group) : group_(std::move(group)) {
  const MemoryCategoryScope category(MemoryCategory::communication);
  mine_ = Tensor::empty({group_->size()}, {.dtype = u8});
  all_ = Tensor::empty({group_->size()}, {.dtype = u8});
}

std::vector<std::uint8_t> RankAgreement::exchange(std::uint8_t mine) {
  if (group_->size() == 1) return {mine};
  std::fill_n(mine_.data<std::uint8_t>(), group_->size(), mine);
  // Counted apart from the collectives of parameters and gradients, which plans foretell.
  group_->all_to_all(all_, mine_, {.owner = "agreement"}).synchronize();
  const auto* codes = all_.data<std::uint8_t>();
  return {codes, codes + group_->size()};
}

void RankAgreement::settle(const std::exception_ptr& error, const std::string& doing) {
  const std::vector<std::uint8_t> codes = exchange(code_of(error));
  const auto failed = std::find_if(codes.begin(), codes.end(), [](auto code) { return code != 0; });
  if (failed == codes.end()) return;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const OutOfMemory& own) {
    throw AgreedOutOfMemory(own.what());
  }
  const auto rank = static_cast<int>(failed - codes.begin());
  if (*failed == kOutOfMemory) {
    throw AgreedOutOfMemory(str("[FSDP] rank ", rank, " has no memory left ", doing, " (rank ",
                                group_->rank(), ", group ", group_->name(),
                                "); its own message says what holds it"));
  }
  throw RemoteError(str("[FSDP] rank ", rank, " failed ", doing, " (rank ", group_->rank(),
                        ", group ", group_->name(), "); its own message says why"),
                    rank);
}

Tensor RankAgreement::allocate(FSDPCollectives& collectives, comm::ProcessGroup& part,
                               std::int64_t bytes) {
  Tensor memory;
  std::exception_ptr error;
  try {
    memory = collectives.allocate(part, bytes);
  } catch (const OutOfMemory& refused) {
    // All ranks of `part` have raised it.
    if (part.size() == group_->size()) throw AgreedOutOfMemory(refused.what());
    error = std::current_exception();
  }
  const bool alone = collectives.device().type == DeviceType::meta;
  if (!alone && part.size() < group_->size()) settle(error, "to gather parameters");
  return memory;
}

}  // namespace cohort::parallel
