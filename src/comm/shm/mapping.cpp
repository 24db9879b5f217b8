#include "comm/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "cohort/core/error.h"
#include "comm/shm/memory_left.h"

namespace cohort::comm::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// MADV_COLLAPSE of Linux 6.1, which Debian 12's C library does not name: turns pages that are there
// into huge ones, also where the system gives shared memory none by itself (the usual setting).
// Streaming through 4 KiB pages takes a tenth longer, in collectives and in whoever else uses the
// buffers.
constexpr int kCollapse = 25;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void refuse(const char* call, std::size_t bytes, int code) {
  const std::string message =
      str("[shared memory] ", call, " refused ", bytes,
          " bytes: ", std::generic_category().message(code),
          "; free memory, raise the limit of the container, or use smaller buckets");
  throw OutOfMemory(message);
}

std::byte* round_up(std::byte* address, std::size_t multiple) {
  const auto past = reinterpret_cast<std::uintptr_t>(address) % multiple;
  return past == 0 ? address : address + (multiple - past);
}

// Maps `file` at a multiple of the huge page's size, without which there are no huge pages: in the
// middle of a larger range, whose ends are given back.
std::byte* map_aligned(int file, std::size_t bytes) {
  const std::size_t room = bytes + kHugePage + kPage;
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) refuse("mmap", bytes, errno);
  auto* const first = static_cast<std::byte*>(reserved);
  std::byte* const begin = round_up(first, kHugePage);
  std::byte* const end = round_up(begin + bytes, kPage);
  if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    const int code = errno;
    munmap(reserved, room);
    refuse("mmap", bytes, code);
  }
  if (begin > first) munmap(first, static_cast<std::size_t>(begin - first));
  munmap(end, static_cast<std::size_t>(first + room - end));
  return begin;
}

}  // namespace

void Descriptor::reset(int number) {
  if (number_ >= 0) close(number_);
  number_ = number;
}

Mapping::Mapping(Descriptor file, std::size_t bytes) : file_(file.get()), bytes_(bytes) {
  data_ = map_aligned(file.get(), bytes);
  // Wishes, whose failure costs only time (huge pages) or privacy of a core dump's size.
  madvise(data_, bytes, MADV_HUGEPAGE);
  madvise(data_, bytes, MADV_DONTDUMP);
  file.release();
}

Mapping::~Mapping() {
  close_file();
  munmap(data_, bytes_);
}

std::shared_ptr<Mapping> Mapping::create(std::size_t bytes) {
  // A container's limit is enforced by killing processes, not by refusing: ask first.
  const std::size_t left = memory_left();
  check<OutOfMemory>(bytes <= left, "[shared memory] ", bytes, " bytes do not fit into the ", left,
                     " bytes that this machine or container has left; free memory, raise the "
                     "limit, or use smaller buckets");
  Descriptor file(memfd_create("cohort", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) refuse("memfd_create", bytes, errno);
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) refuse("ftruncate", bytes, errno);
  if (fcntl(file.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) refuse("fcntl", bytes, errno);
  return std::shared_ptr<Mapping>(new Mapping(std::move(file), bytes));
}

std::shared_ptr<Mapping> Mapping::adopt(Descriptor file, std::size_t bytes) {
  struct stat status {};
  check<Error>(fstat(file.get(), &status) == 0 && status.st_size == static_cast<off_t>(bytes),
               "[shared memory] a peer passed a segment of ", status.st_size, " bytes where ",
               bytes, " were agreed on");
  const int seals = fcntl(file.get(), F_GET_SEALS);
  check<Error>(seals >= 0 && (seals & kSeals) == kSeals,
               "[shared memory] a peer passed a segment whose size is not sealed");
  return std::shared_ptr<Mapping>(new Mapping(std::move(file), bytes));
}

void Mapping::reserve(std::size_t offset, std::size_t bytes) {
  int code = 0;
  do {
    code = posix_fallocate(file_.load(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0) refuse("fallocate", bytes, code);
  make_present(offset, bytes);
}

void Mapping::prefault() {
  make_present(0, bytes_);
}

void Mapping::make_present(std::size_t offset, std::size_t bytes) {
  std::byte* const begin = data_ + offset / kPage * kPage;
  std::byte* const end = data_ + offset + bytes;
  const auto length = static_cast<std::size_t>(end - begin);
  if (madvise(begin, length, MADV_POPULATE_WRITE) != 0) {
    // Before Linux 5.14: touch each page. Reading is enough: the pages exist.
    for (std::byte* at = begin; at < end; at += kPage) {
      static_cast<void>(*static_cast<volatile std::byte*>(at));
    }
  }
  madvise(begin, length, kCollapse);  // a wish: fails where there is nothing to gain, too
}

void Mapping::close_file() {
  const int file = file_.exchange(-1);
  if (file >= 0) close(file);
}

}  // namespace cohort::comm::shm
