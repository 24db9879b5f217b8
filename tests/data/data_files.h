#pragma once

#include <stdlib.h>  // mkdtemp

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace cohort::data {

// A directory that goes, with its contents, at the end of the scope.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "cohort_test_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

// `value` as `bytes` big-endian bytes.
inline std::string big_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// The beginning of an IDX file.
inline std::string idx_header(int type, const std::vector<std::uint32_t>& sizes) {
  std::string text = big_endian(static_cast<std::uint64_t>(type) << 8 | sizes.size(), 4);
  for (const std::uint32_t size : sizes) text += big_endian(size, 4);
  return text;
}

}  // namespace cohort::data
