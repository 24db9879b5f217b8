#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace cohort::data {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using UniqueFile = std::unique_ptr<std::FILE, CloseFile>;

// The contents of a file, front to back. Errors are FileErrors that name it.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `to` and returns its size; less only at the end of the contents.
  virtual std::size_t read(std::span<std::byte> to) = 0;
  // An upper bound of all contents, known without reading them: what a header claims beyond it is
  // refused before memory is allocated for it.
  virtual std::uint64_t size_bound() const = 0;
};

// Opens a regular file, decompressing it when it begins as a gzip file does.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// Decompresses `file`, which stands at its beginning and is `bytes` long. In gzip_zlib.cpp, or, for
// a build without zlib, in no_gzip.cpp, which throws NotSupported.
std::unique_ptr<ByteSource> open_gzip(UniqueFile file, std::uint64_t bytes,
                                      const std::string& path);

}  // namespace cohort::data
