#pragma once

#include <memory>
#include <string>

#include "comm/gloo/collectives.h"
#include "comm/shm/link.h"
#include "comm/shm/shm_transport.h"

namespace cohort::comm::gloo {

// The group of one host's ranks inside a hierarchical one.
std::unique_ptr<Transport> make_local(const std::shared_ptr<shm::Link>& link, int place, int size,
                                      const std::string& group, Milliseconds timeout);

// Ranks of several hosts, of which some have more than one. A tensor is cut into slices, as many as
// the smallest host has ranks; the k-th rank of each host looks after slice k. Shared memory moves
// bytes inside a host, and Gloo those of a slice between the ranks that look after it. What has
// nothing to gain from that goes through Gloo alone. The bits are those of the flat transport.
class HierarchicalTransport final : public GlooTransport {
 public:
  // `local` is null on the only rank of a host.
  HierarchicalTransport(std::shared_ptr<Device> device, std::unique_ptr<Member> member,
                        SumTree tree, std::unique_ptr<Transport> local);
  ~HierarchicalTransport() override;

  std::string_view name() const override { return "hierarchical"; }

  std::int64_t all_reduce(const Call& call, void* data) override;
  std::int64_t reduce_scatter(const Call& call, void* out, const void* in,
                              std::span<const std::int64_t> counts) override;
  std::int64_t all_gather(const Call& call, void* out, const void* in,
                          std::span<const std::int64_t> counts) override;
  std::int64_t broadcast(const Call& call, void* data) override;
  SymmetricMemory allocate(const Call& call, std::size_t bytes,
                           const std::string& refusal) override;
  std::optional<std::int64_t> expected_bytes(const Call& call, bool symmetric,
                                             bool in_place) const override;
  std::unique_ptr<Transport> split(const Call& call, const std::vector<int>& members,
                                   const std::string& name) override;
  void leave() noexcept override;

 private:
  // Runs `step` of the host's own group, whose errors are the whole group's.
  template <typename Step>
  auto locally(Step step);
  // What exchange_slice() will return.
  std::int64_t exchanged_bytes(DType dtype, std::int64_t elements) const;
  Call local_call(const Call& call, std::int64_t elements) const;
  const std::vector<int>& host() const { return tree_.hosts()[static_cast<std::size_t>(host_)]; }
  int local_size() const { return static_cast<int>(host().size()); }
  std::vector<std::int64_t> slice_counts(const Call& call) const;
  std::int64_t reduce_slice(const Call& call, std::span<void* const> tensors,
                            const std::vector<std::int64_t>& counts);
  std::int64_t exchange_slice(const Call& call, const std::byte* partial, std::byte* slice,
                              std::int64_t elements,
                              std::function<void(std::int64_t, std::int64_t)> prepare,
                              std::function<void(std::int64_t, std::int64_t)> arrived);
  std::int64_t staged_all_reduce(const Call& call, void* data);
  // The ranks that look after this rank's slice, by host.
  std::vector<int> slice_owners() const;
  // The parts of one host's ranks, which lie one behind the other in a regular layout.
  std::vector<std::int64_t> counts_of(std::span<const std::int64_t> counts, int host) const;
  void sum_locally(const Call& call, void* partial, const void* in,
                   std::span<const std::int64_t> counts);
  void gather_locally(const Call& call, std::byte* whole, const void* own,
                      std::span<const std::int64_t> counts);
  std::byte* partials(std::int64_t bytes);

  std::unique_ptr<shm::ShmTransport> local_;
  const int host_;
  const int place_;  // on the host
  int slices_;
  bool regular_ = true;  // equally many ranks on each host, and neighbours
  std::vector<std::byte> partials_;
};

}  // namespace cohort::comm::gloo
