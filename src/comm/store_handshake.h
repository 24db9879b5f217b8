#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/comm/store.h"

// The handshake that comes before the first frame. With K = BLAKE2b(secret), J = BLAKE2b(job id)
// and fresh nonces C and S of client and server:
//   client: hello   magic (8) | J (32) | C (32)
//   server: answer  magic (8) | verdict (1) | S (32) | BLAKE2b_K("server" J C S) (32)
//   client: proof   BLAKE2b_K("client" J C S) (32)
//   server: verdict (1)
// Each side proves that it knows the secret for this very connection; neither proof can be replayed
// or reflected. Proofs are compared in constant time. The traffic after it is not protected: the
// network between the ranks is trusted, the other users of the machines are not.
namespace cohort::comm {

inline constexpr std::string_view kStoreMagic = "COHORTS1";  // the last byte is the version
inline constexpr std::size_t kHashSize = 32;
inline constexpr std::size_t kHelloSize = 8 + 2 * kHashSize;
inline constexpr std::size_t kAnswerSize = 8 + 1 + 2 * kHashSize;
inline constexpr std::size_t kProofSize = kHashSize;

enum class Verdict : std::uint8_t { accepted = 1, wrong_job = 2, wrong_secret = 3, full = 4 };

using Hash = std::array<unsigned char, kHashSize>;

// Key and job of one side, hashed once. Immutable.
class HandshakeKeys {
 public:
  explicit HandshakeKeys(const StoreCredentials& credentials);
  enum class Role { client, server };
  Hash proof(Role role, const Hash& client_nonce, const Hash& server_nonce) const;
  const Hash& job() const { return job_; }

 private:
  Hash key_;
  Hash job_;
};

// The server's half of one handshake, free of input and output.
class ServerHandshake {
 public:
  explicit ServerHandshake(const HandshakeKeys& keys) : keys_(&keys) {}

  enum class Next { more, rejected, done };
  struct Step {
    Next next;
    std::string reply;  // to be sent in any case
  };
  // How many bytes the next message has.
  std::size_t expects() const { return answered_ ? kProofSize : kHelloSize; }
  // False as soon as the message that begins with `part` cannot be one of ours.
  bool plausible(std::string_view part) const;
  // Takes exactly expects() bytes.
  Step feed(std::string_view message);

 private:
  const HandshakeKeys* keys_;
  bool answered_ = false;
  Hash expected_proof_{};
};

// The client's half.
class ClientHandshake {
 public:
  explicit ClientHandshake(const StoreCredentials& credentials);
  std::string hello() const;
  enum class Answer { proven, not_a_store, wrong_job, wrong_secret };
  // Judges the server's answer of kAnswerSize bytes; fills `proof` to be sent when it is proven.
  Answer judge(std::string_view answer, std::string& proof) const;

 private:
  HandshakeKeys keys_;
  Hash nonce_;
};

// `bytes` random bytes from the system, in hexadecimal: a job's secret.
std::string random_hex(std::size_t bytes);

}  // namespace cohort::comm
