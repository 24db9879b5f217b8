#include "cohort/core/device.h"

#include <ostream>

namespace cohort {

std::ostream& operator<<(std::ostream& out, const Device& device) {
  switch (device.type) {
    case DeviceType::cpu:
      return out << "cpu";
    case DeviceType::cuda:
      return out << "cuda:" << device.index;
    case DeviceType::meta:
      return out << "meta";
  }
  return out << "invalid device";
}

}  // namespace cohort
