#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

// Base of everything the library throws. The message reads
//   [operation] what happened (where: rank, group, sequence, file); hint
// so that one line of a log tells what, where and what to do. One subclass exists for each thing
// that a caller could handle differently; docs/errors.md says what is still usable after each.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A caller passed something that cannot be right: a value, an option, an index, a name.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Sizes that do not fit together; the message shows all of them.
class ShapeError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// A dtype that the operation does not take, or two that differ.
class DTypeError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Something this build or device cannot do (a missing library, an operation not on that device).
class NotSupported : public Error {
 public:
  using Error::Error;
};

// A misuse of the graph: a second backward, a saved tensor written in place, no gradient to flow.
class AutogradError : public Error {
 public:
  using Error::Error;
};

// The allocator's limit or the device's memory is exhausted. Nothing was allocated.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A file that is missing, truncated or not what it claims; the message names it.
class FileError : public Error {
 public:
  using Error::Error;
};

// Anything that ends communication with the peers. The group is unusable afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

// A deadline passed. The message says for what, and which ranks were missing where that is known.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

// A peer died, left, or raised an error of its own; `rank()` is the first one known to.
class PeerError : public CommError {
 public:
  PeerError(const std::string& message, int rank) : CommError(message), rank_(rank) {}
  // Rank (in the group named by the message) where the failure began; -1 when unknown.
  int rank() const { return rank_; }

 private:
  int rank_;
};

// Another rank raised an error in a step that the ranks do together. All of them know of it and
// gave the step up; the group goes on. `rank()` is the first one that failed.
class RemoteError : public Error {
 public:
  RemoteError(const std::string& message, int rank) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// The ranks do not agree on what they are doing: another operation, size, dtype or model.
class MismatchError : public CommError {
 public:
  using CommError::CommError;
};

// The rendezvous store refused, is gone, or answered nonsense.
class StoreError : public CommError {
 public:
  using CommError::CommError;
};

// Replicas that must be equal are not: a replica check found a tensor whose bytes differ between
// ranks. Raised on every rank; nothing was changed, and the group goes on.
class ReplicaError : public Error {
 public:
  ReplicaError(const std::string& message, std::string tensor, std::vector<int> ranks)
      : Error(message), tensor_(std::move(tensor)), ranks_(std::move(ranks)) {}
  // The first tensor that differs, by its name in the module; empty when the modules themselves do.
  const std::string& tensor() const { return tensor_; }
  // Ranks of the group that are not with the majority; where there is none, not with rank 0.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::string tensor_;
  std::vector<int> ranks_;
};

// Concatenates anything that can be streamed: str("rank ", 3, " of ", 4).
template <typename... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// Throws `E` with the concatenated message when `condition` is false. The arguments are evaluated
// in any case, so they should be cheap.
template <typename E = InvalidArgument, typename... Args>
void check(bool condition, const Args&... args) {
  if (!condition) [[unlikely]] {
    throw E(str(args...));
  }
}

}  // namespace cohort
