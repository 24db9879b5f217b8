#include "comm/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cohort/core/error.h"
#include "comm/shm/memory_left.h"

namespace cohort::comm::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void refuse(const char* call, std::size_t bytes, int code) {
  const std::string message =
      str("[shared memory] ", call, " refused ", bytes,
          " bytes: ", std::generic_category().message(code),
          "; free memory, raise the limit of the container, or use smaller buckets");
  throw OutOfMemory(message);
}

}  // namespace

void Descriptor::reset(int number) {
  if (number_ >= 0) close(number_);
  number_ = number;
}

Mapping::Mapping(Descriptor file, std::size_t bytes) : file_(file.get()), bytes_(bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) refuse("mmap", bytes, errno);
  // Wishes, whose failure costs only time (huge pages) or privacy of a core dump's size.
  madvise(data, bytes, MADV_HUGEPAGE);
  madvise(data, bytes, MADV_DONTDUMP);
  data_ = static_cast<std::byte*>(data);
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
}

void Mapping::prefault() {
  if (madvise(data_, bytes_, MADV_POPULATE_WRITE) == 0) return;
  // Before Linux 5.14: touch each page. Reading is enough: the pages exist.
  for (std::size_t at = 0; at < bytes_; at += 4096) {
    static_cast<void>(*static_cast<volatile std::byte*>(data_ + at));
  }
}

void Mapping::close_file() {
  const int file = file_.exchange(-1);
  if (file >= 0) close(file);
}

}  // namespace cohort::comm::shm
