#include "cohort/comm/device_mesh.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

std::string text_of(const std::vector<DeviceMesh::Dimension>& dimensions) {
  std::string text;
  for (const auto& [name, size] : dimensions) {
    text += str(text.empty() ? "" : " x ", size, " (", name, ')');
  }
  return text;
}

void check_dimensions(const ProcessGroup* group,
                      const std::vector<DeviceMesh::Dimension>& dimensions) {
  check(group != nullptr, "[DeviceMesh] the process group is null");
  check(!dimensions.empty(), "[DeviceMesh] a mesh needs a dimension");
  std::int64_t ranks = 1;
  for (auto it = dimensions.begin(); it != dimensions.end(); ++it) {
    const auto same = [&](const DeviceMesh::Dimension& other) { return other.name == it->name; };
    check(!it->name.empty() && std::none_of(dimensions.begin(), it, same), "[DeviceMesh] '",
          it->name, "' is no name for a dimension of ", text_of(dimensions),
          "; names are not empty and occur once");
    check(it->size >= 1, "[DeviceMesh] dimension '", it->name, "' has size ", it->size);
    ranks *= it->size;
  }
  check(ranks == group->size(), "[DeviceMesh] a mesh of ", text_of(dimensions), " has ", ranks,
        " ranks, and group '", group->name(), "' has ", group->size());
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Dimension> dimensions)
    : group_(std::move(group)), dimensions_(std::move(dimensions)) {
  check_dimensions(group_.get(), dimensions_);
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    if (dimensions_[d].size == group_->size()) {
      along_.push_back(group_);
      continue;
    }
    // Ranks of one line agree in all other coordinates: the number of the line is its first rank.
    int stride = 1;
    for (std::size_t later = d + 1; later < dimensions_.size(); ++later) {
      stride *= dimensions_[later].size;
    }
    const int line = group_->rank() - coordinate_of(group_->rank(), d) * stride;
    along_.push_back(group_->split(line, 0, group_->name() + '/' + dimensions_[d].name));
  }
}

int DeviceMesh::coordinate_of(int rank, std::size_t dimension) const {
  for (std::size_t d = dimensions_.size() - 1; d > dimension; --d) rank /= dimensions_[d].size;
  return rank % dimensions_[dimension].size;
}

std::size_t DeviceMesh::index(std::string_view name) const {
  const auto found = std::find_if(dimensions_.begin(), dimensions_.end(),
                                  [&](const Dimension& one) { return one.name == name; });
  check(found != dimensions_.end(), "[DeviceMesh] there is no dimension '", name, "' in a mesh of ",
        text_of(dimensions_));
  return static_cast<std::size_t>(found - dimensions_.begin());
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group(std::string_view name) const {
  return along_[index(name)];
}

int DeviceMesh::size(std::string_view name) const {
  return dimensions_[index(name)].size;
}

int DeviceMesh::coordinate(std::string_view name) const {
  return coordinate_of(group_->rank(), index(name));
}

DeviceMesh DeviceMesh::submesh(const std::vector<std::string>& names) const {
  std::vector<bool> kept(dimensions_.size());
  for (const std::string& name : names) kept[index(name)] = true;
  std::vector<Dimension> dimensions;
  std::string title = group_->name() + '/';
  int others = 0;  // the coordinates that are left out, as one number: the color
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    if (kept[d]) {
      title += (dimensions.empty() ? "" : "x") + dimensions_[d].name;
      dimensions.push_back(dimensions_[d]);
    } else {
      others = others * dimensions_[d].size + coordinate_of(group_->rank(), d);
    }
  }
  check(!dimensions.empty(), "[DeviceMesh] a submesh needs a dimension");
  if (dimensions.size() == dimensions_.size()) return *this;
  return DeviceMesh(group_->split(others, 0, title), std::move(dimensions));
}

}  // namespace cohort::comm
