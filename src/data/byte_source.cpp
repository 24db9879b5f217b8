#include "data/byte_source.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

class PlainFile final : public ByteSource {
 public:
  PlainFile(UniqueFile file, std::uint64_t bytes, std::string path)
      : file_(std::move(file)), bytes_(bytes), path_(std::move(path)) {}

  std::size_t read(std::span<std::byte> to) override {
    const std::size_t count = std::fread(to.data(), 1, to.size(), file_.get());
    check<FileError>(!std::ferror(file_.get()), "[read] reading failed: ", std::strerror(errno),
                     " (file ", path_, ")");
    return count;
  }
  std::uint64_t size_bound() const override { return bytes_; }

 private:
  UniqueFile file_;
  std::uint64_t bytes_;
  std::string path_;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  check<FileError>(std::filesystem::exists(status), "[open] there is no such file (file ", path,
                   ")");
  check<FileError>(std::filesystem::is_regular_file(status), "[open] not a regular file (file ",
                   path, ")");
  UniqueFile file(std::fopen(path.c_str(), "rb"));
  check<FileError>(file != nullptr, "[open] ", std::strerror(errno), " (file ", path, ")");
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  check<FileError>(!error, "[open] ", error.message(), " (file ", path, ")");

  unsigned char magic[2] = {};
  const std::size_t got = std::fread(magic, 1, sizeof(magic), file.get());
  std::rewind(file.get());
  if (got == sizeof(magic) && magic[0] == 0x1f && magic[1] == 0x8b) {
    return open_gzip(std::move(file), bytes, path);
  }
  return std::make_unique<PlainFile>(std::move(file), bytes, path);
}

}  // namespace cohort::data
