#pragma once

#include <compare>
#include <cstdint>
#include <iosfwd>

namespace cohort {

enum class DeviceType : std::uint8_t {
  cpu,
  cuda,
  meta,  // shapes without data: for deferred initialisation and prediction
};

// Where a tensor's bytes live.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int16_t index = 0;  // which GPU; 0 on cpu and meta

  auto operator<=>(const Device&) const = default;  // NOLINT(modernize-use-nullptr)

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device meta() { return {DeviceType::meta, 0}; }
  static constexpr Device cuda(int index = 0) {
    return {DeviceType::cuda, static_cast<std::int16_t>(index)};
  }
};

// "cpu", "cuda:0", "meta".
std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace cohort
