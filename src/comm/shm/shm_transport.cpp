#include "comm/shm/shm_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "cohort/core/error.h"
#include "comm/shm/socket.h"

namespace cohort::comm::shm {
namespace {

Call call_of(const CallRecord& record) {
  return {
      .operation = record.operation,
      .reduce = record.reduce,
      .dtype = record.dtype,
      .elements = record.elements,
      .peer = record.peer,
      .scale = record.scale,
      .owner = std::string(record.owner, strnlen(record.owner, kOwnerBytes)),
  };
}

// A fresh segment for a group of `size`: rank 0 makes it and hands it out.
std::shared_ptr<Mapping> share_control(Link& link, std::uint64_t tag, int rank, int size,
                                       const Link::Poll& poll) {
  const Layout layout(size);
  if (rank != 0) {
    auto segment = link.receive(tag, layout.bytes(), poll);
    segment->prefault();
    segment->close_file();
    return segment;
  }
  std::shared_ptr<Mapping> segment;
  try {
    segment = Mapping::create(layout.bytes());
    segment->reserve(0, layout.bytes());
    segment->prefault();
  } catch (const OutOfMemory& error) {
    link.offer(tag, nullptr, error.what(), poll);
    throw;
  }
  Header& header = *new (segment->data()) Header{};
  header.id = random_word();
  header.size = static_cast<std::uint32_t>(size);
  for (int r = 0; r < size; ++r) new (&layout.rank(segment->data(), r)) RankSlot{};
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) new (&layout.channel(segment->data(), from, to)) Channel{};
  }
  link.offer(tag, segment, {}, poll);
  segment->close_file();
  return segment;
}

std::unique_ptr<Transport> make_transport(std::shared_ptr<Member> member) {
  member->family()->add(member->id(), member);
  return std::make_unique<ShmTransport>(std::move(member));
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<Link> link, int rank, int size,
                                              const std::string& group, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  auto segment = share_control(*link, /*tag=*/0, rank, size, [&] {
    if (link->gone(0)) throw PeerError("[init] rank 0 died while the group was formed", 0);
    check<TimeoutError>(!deadline.passed(), "[init] rank 0 made no shared memory in time (rank ",
                        rank, " of ", size, ", group '", group, "')");
  });
  auto family = std::make_shared<Family>(segment, size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_transport(std::make_shared<Member>(std::move(segment), std::move(link),
                                                 std::move(family), std::move(ranks), rank, group));
}

ShmTransport::ShmTransport(std::shared_ptr<Member> member)
    : member_(std::move(member)), pool_(std::make_shared<SymmetricPool>(member_->rank())) {}

ShmTransport::~ShmTransport() {
  leave();
}

void ShmTransport::leave() noexcept {
  member_->leave();
  member_->family()->remove(member_->id());
}

ShmTransport::Round::Round(ShmTransport& transport, const Call& call, std::uint64_t counts_hash)
    : transport_(transport) {
  transport_.member_->begin(call, ++transport_.sequence_);
  transport_.write_record(call, counts_hash);
}

void ShmTransport::write_record(const Call& call, std::uint64_t counts_hash) {
  CallRecord& record = own_record();
  record = {};
  record.sequence = sequence_;
  record.operation = call.operation;
  record.reduce = call.reduce;
  record.dtype = call.dtype;
  record.elements = call.elements;
  record.peer = call.peer;
  record.scale = call.scale;
  check_signature_ = call.check_signature;
  if (!check_signature_) return;
  call.owner.copy(record.owner, kOwnerBytes - 1);
  record.hash = signature(call, sequence_, counts_hash);
}

void ShmTransport::meet() {
  member_->publish();
  member_->await();
  if (!check_signature_) return;
  const std::uint64_t expected = own_record().hash;
  for (int r = 0; r < size(); ++r) {
    if (record(r).hash != expected) report_mismatch();
  }
}

void ShmTransport::report_mismatch() {
  std::vector<Said> said;
  for (int r = 0; r < size(); ++r) said.push_back({record(r).hash, call_of(record(r))});
  member_->fail(FailureKind::mismatch, rank(), describe_mismatch(said));
}

ShmTransport::Route ShmTransport::common_route() const {
  const auto common = [&](Place CallRecord::*place) {
    const Place mine = own_record().*place;
    if (mine.block == 0) return false;
    for (int r = 0; r < size(); ++r) {
      if (record(r).*place != mine) return false;
    }
    return true;
  };
  // Writing into the peers' memory is faster than reading from it.
  if (common(&CallRecord::out)) return Route::out_direct;
  if (common(&CallRecord::in)) return Route::in_direct;
  return Route::staged;
}

void ShmTransport::finish() {
  member_->publish();
  member_->await();
}

void ShmTransport::barrier(const Call& call) {
  const Round round(*this, call);
  meet();
}

SymmetricMemory ShmTransport::allocate(const Call& call, std::size_t bytes,
                                       const std::string& refusal) {
  const Round round(*this, call);
  const std::size_t slice = SymmetricPool::slice_bytes(bytes);
  const auto ranks = static_cast<std::size_t>(size());
  // What cannot be counted in a file's size is refused like what does not fit.
  const bool countable = bytes < (std::size_t{1} << 62) / ranks;
  own_record().free_blocks = countable ? pool_->free_blocks(slice) : 0;
  own_record().refuses = !refusal.empty() || !countable;
  meet();
  std::uint64_t common = ~std::uint64_t{0};
  std::string refusing;
  for (int r = 0; r < size(); ++r) {
    common &= record(r).free_blocks;
    if (record(r).refuses) refusing += (refusing.empty() ? "" : ", ") + std::to_string(r);
  }
  check<OutOfMemory>(refusing.empty(), "[allocate] ", bytes,
                     " bytes of symmetric memory do not fit ",
                     refusal.empty() ? str("on rank ", refusing) : str("into ", refusal), " (rank ",
                     rank(), " of ", size(), ", group '", member_->group(), "')");
  const std::uint32_t block =
      common != 0 ? pool_->take(slice, std::countr_zero(common)) : reserve_block(bytes, slice);
  const Place place{block, 0};
  return {
      pool_->at(place, rank()), pool_->at(place, 0),
      std::shared_ptr<void>(pool_.get(), [pool = pool_, block](void*) { pool->give_back(block); })};
}

std::uint32_t ShmTransport::reserve_block(std::size_t bytes, std::size_t slice) {
  Link& link = member_->link();
  const std::uint64_t tag = Hash().add(member_->id()).add(sequence_).value();
  const auto poll = [&] { member_->look_at(0); };
  const auto total = slice * static_cast<std::size_t>(size());
  std::shared_ptr<Mapping> segment;
  std::string trouble;
  try {
    if (rank() == 0) {
      segment = Mapping::create(total);
    } else {
      segment = link.receive(tag, total, poll);
    }
  } catch (const OutOfMemory& error) {
    trouble = error.what();
  }
  if (rank() == 0) link.offer(tag, segment, trouble, poll);
  try {
    // Each rank finds the memory of its own slice: in parallel, and near its core.
    if (segment) segment->reserve(static_cast<std::size_t>(rank()) * slice, slice);
  } catch (const OutOfMemory& error) {
    trouble = error.what();
  }
  member_->slot(rank()).failed_allocation.store(trouble.empty() ? 0 : 1, std::memory_order_relaxed);
  finish();
  std::vector<int> failed;
  for (int r = 0; r < size(); ++r) {
    if (member_->slot(r).failed_allocation.load(std::memory_order_relaxed) != 0) {
      failed.push_back(r);
    }
  }
  if (segment) segment->close_file();
  check<OutOfMemory>(failed.empty(), "[allocate] no ", bytes,
                     " bytes of symmetric memory for each of ", size(), " ranks; ",
                     list_ranks(failed), " failed", trouble.empty() ? "" : ": ", trouble, " (rank ",
                     rank(), ", group '", member_->group(), "')");
  segment->prefault();
  return pool_->add(std::move(segment), slice);
}

std::unique_ptr<Transport> ShmTransport::split(const Call& call, const std::vector<int>& members,
                                               const std::string& name) {
  member_->begin(call, sequence_);
  std::shared_ptr<Member> child;
  try {
    const auto self = std::find(members.begin(), members.end(), rank());
    const auto child_rank = static_cast<int>(self - members.begin());
    std::vector<int> family_ranks;
    for (const int r : members) {
      family_ranks.push_back(member_->family_ranks()[static_cast<std::size_t>(r)]);
    }
    auto link = member_->link().subset(members);
    const std::uint64_t tag = Hash()
                                  .add(member_->id())
                                  .add(sequence_)
                                  .add(static_cast<std::uint64_t>(members.front()))
                                  .value();
    auto segment = share_control(*link, tag, child_rank, static_cast<int>(members.size()),
                                 [&] { member_->look_at(members.front()); });
    child = std::make_shared<Member>(std::move(segment), std::move(link), member_->family(),
                                     std::move(family_ranks), child_rank, name);
  } catch (...) {
    member_->end();
    throw;
  }
  member_->end();
  return make_transport(std::move(child));
}

}  // namespace cohort::comm::shm
