#include <zlib.h>

#include <array>
#include <limits>
#include <utility>

#include "cohort/core/error.h"
#include "data/byte_source.h"

namespace cohort::data {
namespace {

// Deflate's densest code turns 2 bits into 258 bytes: 1032 bytes out of each one.
constexpr std::uint64_t kMaxExpansion = 1032;

// A gzip file (RFC 1952): one or more members, each closed by the checksum of its contents, which
// inflate() verifies.
class GzipFile final : public ByteSource {
 public:
  GzipFile(UniqueFile file, std::uint64_t bytes, std::string path)
      : file_(std::move(file)), bytes_(bytes), path_(std::move(path)) {
    // 15: the largest window; + 16: a gzip header and trailer.
    check<Error>(inflateInit2(&stream_, 15 + 16) == Z_OK, "[gunzip] zlib failed to start (file ",
                 path_, ")");
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  std::size_t read(std::span<std::byte> to) override {
    std::size_t done = 0;
    while (done < to.size()) {
      if (stream_.avail_in == 0) refill();
      if (between_members_) {
        if (stream_.avail_in == 0) break;  // the regular end of the file
        check<FileError>(inflateReset(&stream_) == Z_OK, "[gunzip] zlib failed (file ", path_, ")");
        between_members_ = false;
      }
      // avail_out is 32 bits wide.
      const std::size_t room = std::min<std::size_t>(to.size() - done, 1u << 30);
      stream_.next_out = reinterpret_cast<Bytef*>(to.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      done += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        between_members_ = true;
      } else if (result == Z_BUF_ERROR && at_end_) {
        throw FileError(str("[gunzip] the compressed file ends early (file ", path_, ")"));
      } else if (result != Z_OK) {
        throw FileError(str("[gunzip] the compressed data are corrupt: ",
                            stream_.msg != nullptr ? stream_.msg : "unknown", " (file ", path_,
                            ")"));
      }
    }
    return done;
  }

  std::uint64_t size_bound() const override {
    constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
    return bytes_ > kMax / kMaxExpansion ? kMax : bytes_ * kMaxExpansion;
  }

 private:
  void refill() {
    if (at_end_) return;
    const std::size_t count = std::fread(input_.data(), 1, input_.size(), file_.get());
    check<FileError>(!std::ferror(file_.get()), "[gunzip] reading failed (file ", path_, ")");
    at_end_ = count < input_.size();
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(count);
  }

  UniqueFile file_;
  std::uint64_t bytes_;
  std::string path_;
  z_stream stream_{};
  std::array<Bytef, 64 * 1024> input_{};
  bool at_end_ = false;           // of the compressed file
  bool between_members_ = false;  // one has ended, and the next has not begun
};

}  // namespace

std::unique_ptr<ByteSource> open_gzip(UniqueFile file, std::uint64_t bytes,
                                      const std::string& path) {
  return std::make_unique<GzipFile>(std::move(file), bytes, path);
}

}  // namespace cohort::data
