#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/comm/process_group.h"

namespace cohort::comm {

// The ranks of a group as a grid with named dimensions (PyTorch's DeviceMesh). Rank r has the
// coordinates of element r of a row-major tensor of the dimensions' sizes: neighbours differ in the
// last one, which should be the one that communicates most. Along each dimension the ranks that
// differ in that coordinate alone form a group.
//
//   DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   mesh.group("shard")->all_gather(...);
//
// Copies share the groups. Belongs to the rank's host thread.
class DeviceMesh {
 public:
  struct Dimension {
    std::string name;
    int size;
  };

  // Collective, with the same dimensions on all ranks. InvalidArgument, before anything is
  // communicated, when the sizes do not multiply to the group's, or names are empty or occur twice.
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Dimension> dimensions);

  // All ranks of the mesh.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // InvalidArgument, naming those there are, for a name that the mesh does not have.
  const std::shared_ptr<ProcessGroup>& group(std::string_view name) const;
  int size(std::string_view name) const;
  int coordinate(std::string_view name) const;

  // Collective: the mesh of some of the dimensions, in this mesh's order, through this rank. With
  // data and tensor parallelism on one mesh, what FSDP gets is mesh.submesh({"replicate",
  // "shard"}).
  DeviceMesh submesh(const std::vector<std::string>& names) const;

 private:
  std::size_t index(std::string_view name) const;
  // Coordinate of rank `rank` of the mesh along a dimension.
  int coordinate_of(int rank, std::size_t dimension) const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<Dimension> dimensions_;
  std::vector<std::shared_ptr<ProcessGroup>> along_;  // by dimension
};

}  // namespace cohort::comm
