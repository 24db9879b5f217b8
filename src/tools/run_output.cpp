#include "tools/run_output.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "cohort/core/deadline.h"
#include "cohort/core/error.h"

namespace cohort::tools {
namespace {

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool is_regular(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

OutputSink::OutputSink(int fd) : fd_(fd), regular_file_(is_regular(fd)) {}

void OutputSink::write_some() {
  // The descriptor is shared with others and stays blocking. A pipe that poll calls writable takes
  // PIPE_BUF bytes without blocking; a file takes everything.
  std::string_view rest = std::string_view(pending_).substr(written_);
  if (!regular_file_ && rest.size() > PIPE_BUF) {
    rest = rest.substr(0, PIPE_BUF);
    const std::size_t line_end = rest.rfind('\n');
    if (line_end != rest.npos) rest = rest.substr(0, line_end + 1);
  }
  const ssize_t put = ::write(fd_, rest.data(), rest.size());
  if (put > 0) {
    written_ += static_cast<std::size_t>(put);
  } else if (put < 0 && errno != EINTR && errno != EAGAIN) {
    closed_ = errno == EPIPE;
    written_ = pending_.size();  // a vanished terminal or a full disk: the job matters more
  }
  // Moves the rest to the front only when that is little, so that each byte moves once at most.
  if (2 * written_ >= pending_.size()) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

void OutputSink::discard() {
  closed_ = true;
  pending_.clear();
  written_ = 0;
}

void LinePrefixer::feed(std::string_view bytes, OutputSink& sink) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end == bytes.npos ? end : end + 1);
    bytes.remove_prefix(part.size());
    if (end == bytes.npos || !partial_.empty()) {
      partial_.append(part);
      if (end == bytes.npos && partial_.size() < kMaxLine) return;
      if (end == bytes.npos) partial_.push_back('\n');
      sink.append(prefix_);
      sink.append(std::exchange(partial_, {}));
    } else {
      sink.append(prefix_);
      sink.append(part);
    }
  }
}

void LinePrefixer::finish(OutputSink& sink) {
  if (!partial_.empty()) feed("\n", sink);
}

RankOutput::RankOutput()
    : out_(STDOUT_FILENO), err_(STDERR_FILENO), shared_(same_file(STDOUT_FILENO, STDERR_FILENO)) {}

void RankOutput::add(UniqueFd fd, int rank, bool is_error) {
  streams_.push_back({std::move(fd), LinePrefixer(str("[", rank, "] ")), is_error});
}

void RankOutput::prepare(std::vector<pollfd>& entries) const {
  for (const Stream& stream : streams_) {
    const bool wanted = !sink(stream.is_error).congested();
    entries.push_back({wanted ? stream.fd.get() : -1, POLLIN, 0});
  }
  for (const OutputSink* sink : {&out_, &err_}) {
    entries.push_back({sink->wants_write() ? sink->fd() : -1, POLLOUT, 0});
  }
}

void RankOutput::handle(const std::vector<pollfd>& entries, std::size_t first) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (entries[first + i].revents != 0) read(streams_[i], false);
  }
  const std::size_t sinks = first + streams_.size();
  if (entries[sinks].revents != 0) out_.write_some();
  if (entries[sinks + 1].revents != 0) err_.write_some();
}

void RankOutput::read(Stream& stream, bool everything) {
  std::array<char, 64 * 1024> buffer;
  // 16 reads are 1 MiB, the most that a pipe holds: a process that still writes cannot keep us
  // here.
  for (int i = 0; i < (everything ? 16 : 1); ++i) {
    const ssize_t got = ::read(stream.fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      stream.lines.finish(sink(stream.is_error));
      stream.fd.reset();
      return;
    }
    stream.lines.feed({buffer.data(), static_cast<std::size_t>(got)}, sink(stream.is_error));
  }
}

void RankOutput::say(const std::string& text) {
  sink(true).append("cohort run: " + text + "\n");
}

void RankOutput::discard() {
  out_.discard();
  err_.discard();
}

void RankOutput::drain() {
  for (Stream& stream : streams_) {
    if (!stream.fd) continue;
    read(stream, true);
    if (stream.fd) stream.lines.finish(sink(stream.is_error));
    stream.fd.reset();
  }
}

bool RankOutput::all_ended() const {
  return std::none_of(streams_.begin(), streams_.end(),
                      [](const Stream& stream) { return static_cast<bool>(stream.fd); });
}

void RankOutput::flush(int timeout_ms) {
  const Deadline deadline = Deadline::after(Milliseconds(timeout_ms));
  for (OutputSink* sink : {&out_, &err_}) {
    while (sink->wants_write() && comm::poll_for(sink->fd(), POLLOUT, deadline)) sink->write_some();
  }
}

}  // namespace cohort::tools
