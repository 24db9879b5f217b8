#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "comm/store_socket.h"

namespace cohort::tools {

using comm::UniqueFd;

// Where lines go: our standard output or standard error. Never blocks: bytes wait here until the
// reader takes them.
class OutputSink {
 public:
  explicit OutputSink(int fd);
  void append(std::string_view bytes) {
    if (!closed_) pending_.append(bytes);
  }
  // The reader is behind by so much that its sources should wait.
  bool congested() const { return pending_.size() - written_ > kCongested; }
  bool wants_write() const { return !pending_.empty(); }
  void write_some();  // to be called when poll says that `fd` can be written
  void discard();
  // The reader closed its end.
  bool closed() const { return closed_; }
  int fd() const { return fd_; }

 private:
  static constexpr std::size_t kCongested = 1024 * 1024;
  int fd_;
  bool regular_file_;
  bool closed_ = false;
  std::string pending_;
  std::size_t written_ = 0;  // of pending_
};

// Cuts one rank's stream into lines and gives each its prefix. A line without an end is passed on
// at the end of the stream, or in parts of 1 MiB.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  void feed(std::string_view bytes, OutputSink& sink);
  void finish(OutputSink& sink);

 private:
  static constexpr std::size_t kMaxLine = 1024 * 1024;
  std::string prefix_;
  std::string partial_;
};

// All streams of all ranks on their way to our two outputs.
class RankOutput {
 public:
  RankOutput();
  // Takes over the reading end of a pipe (not blocking).
  void add(UniqueFd fd, int rank, bool is_error);
  // Adds to `entries` what to poll for; handle() then takes the same entries back.
  void prepare(std::vector<pollfd>& entries) const;
  void handle(const std::vector<pollfd>& entries, std::size_t first);
  // A line of our own on standard error.
  void say(const std::string& text);
  void discard();
  // What the pipes still hold, in spite of congestion; used when the ranks are gone.
  void drain();
  bool all_ended() const;
  bool all_written() const { return !out_.wants_write() && !err_.wants_write(); }
  // Whoever read our standard output has gone.
  bool abandoned() const { return out_.closed(); }
  // What is left, waiting for the reader only so long.
  void flush(int timeout_ms);

 private:
  struct Stream {
    UniqueFd fd;
    LinePrefixer lines;
    bool is_error;
  };
  void read(Stream& stream, bool everything);
  OutputSink& sink(bool is_error) { return is_error && !shared_ ? err_ : out_; }
  const OutputSink& sink(bool is_error) const { return is_error && !shared_ ? err_ : out_; }

  OutputSink out_;
  OutputSink err_;
  bool shared_;  // both are one file: one sink, so that lines are not torn
  std::vector<Stream> streams_;
};

}  // namespace cohort::tools
