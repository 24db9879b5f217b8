#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace cohort::comm::shm {

// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  int release() {
    const int number = number_;
    number_ = -1;
    return number;
  }
  void reset(int number = -1);

 private:
  int number_ = -1;
};

// Anonymous shared memory, mapped: a memfd, so that no name is left behind whatever happens. Its
// size is sealed, so that no peer can cut it and turn an access into a bus error.
class Mapping {
 public:
  // `bytes`, zero, nothing reserved yet. OutOfMemory when the system refuses.
  static std::shared_ptr<Mapping> create(std::size_t bytes);
  // What a peer created and passed on. Error when it has another size, or is not sealed.
  static std::shared_ptr<Mapping> adopt(Descriptor file, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int file() const { return file_.load(); }

  // Makes the system find memory for the range now: OutOfMemory here, and no bus error later.
  void reserve(std::size_t offset, std::size_t bytes);
  // Enters the whole mapping, which has been reserved, into the page tables.
  void prefault();
  // The descriptor is needed until all have mapped and reserved. Idempotent.
  void close_file();

 private:
  Mapping(Descriptor file, std::size_t bytes);

  std::atomic<int> file_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace cohort::comm::shm
