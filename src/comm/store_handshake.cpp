#include "comm/store_handshake.h"

#include <sodium.h>

#include <algorithm>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

void start_sodium() {
  // Idempotent and thread-safe; it fails only where the system has no randomness at all.
  check<StoreError>(sodium_init() >= 0, "[store] the system's random numbers are not available");
}

Hash hash_of(std::string_view label, std::string_view text) {
  crypto_generichash_state state;
  Hash result;
  crypto_generichash_init(&state, nullptr, 0, result.size());
  // The label is a constant without a zero byte, so the two parts cannot be confused.
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(label.data()),
                            label.size());
  const unsigned char separator = 0;
  crypto_generichash_update(&state, &separator, 1);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(text.data()),
                            text.size());
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
}

Hash fresh_nonce() {
  Hash nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Hash to_hash(std::string_view bytes) {
  Hash hash;
  std::copy_n(bytes.begin(), hash.size(), hash.begin());
  return hash;
}

void append(std::string& bytes, const Hash& hash) {
  bytes.append(hash.begin(), hash.end());
}

}  // namespace

HandshakeKeys::HandshakeKeys(const StoreCredentials& credentials) {
  start_sodium();
  key_ = hash_of("cohort store secret", credentials.secret);
  job_ = hash_of("cohort store job", credentials.job_id);
}

Hash HandshakeKeys::proof(Role role, const Hash& client_nonce, const Hash& server_nonce) const {
  std::string text = role == Role::client ? "client" : "server";
  append(text, job_);
  append(text, client_nonce);
  append(text, server_nonce);
  Hash result;
  crypto_generichash(result.data(), result.size(),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(), key_.data(),
                     key_.size());
  return result;
}

bool ServerHandshake::plausible(std::string_view part) const {
  return answered_ || part.substr(0, kStoreMagic.size()) == kStoreMagic.substr(0, part.size());
}

ServerHandshake::Step ServerHandshake::feed(std::string_view message) {
  if (!answered_) {
    if (!plausible(message)) return {Next::rejected, {}};
    const Hash job = to_hash(message.substr(kStoreMagic.size()));
    const Hash client_nonce = to_hash(message.substr(kStoreMagic.size() + kHashSize));
    std::string reply(kStoreMagic);
    if (job != keys_->job()) {
      reply.push_back(static_cast<char>(Verdict::wrong_job));
      reply.resize(kAnswerSize);
      return {Next::rejected, reply};
    }
    const Hash server_nonce = fresh_nonce();
    expected_proof_ = keys_->proof(HandshakeKeys::Role::client, client_nonce, server_nonce);
    answered_ = true;
    reply.push_back(static_cast<char>(Verdict::accepted));
    append(reply, server_nonce);
    append(reply, keys_->proof(HandshakeKeys::Role::server, client_nonce, server_nonce));
    return {Next::more, reply};
  }
  const bool equal = sodium_memcmp(message.data(), expected_proof_.data(), kProofSize) == 0;
  const auto verdict = equal ? Verdict::accepted : Verdict::wrong_secret;
  return {equal ? Next::done : Next::rejected, std::string(1, static_cast<char>(verdict))};
}

ClientHandshake::ClientHandshake(const StoreCredentials& credentials)
    : keys_(credentials), nonce_(fresh_nonce()) {}

std::string ClientHandshake::hello() const {
  std::string message(kStoreMagic);
  append(message, keys_.job());
  append(message, nonce_);
  return message;
}

ClientHandshake::Answer ClientHandshake::judge(std::string_view answer, std::string& proof) const {
  if (!answer.starts_with(kStoreMagic)) return Answer::not_a_store;
  answer.remove_prefix(kStoreMagic.size());
  switch (static_cast<Verdict>(answer.front())) {
    case Verdict::accepted:
      break;
    case Verdict::wrong_job:
      return Answer::wrong_job;
    default:
      return Answer::not_a_store;
  }
  const Hash server_nonce = to_hash(answer.substr(1));
  const Hash expected = keys_.proof(HandshakeKeys::Role::server, nonce_, server_nonce);
  if (sodium_memcmp(answer.data() + 1 + kHashSize, expected.data(), kHashSize) != 0) {
    return Answer::wrong_secret;
  }
  proof.clear();
  append(proof, keys_.proof(HandshakeKeys::Role::client, nonce_, server_nonce));
  return Answer::proven;
}

std::string random_hex(std::size_t bytes) {
  start_sodium();
  std::vector<unsigned char> random(bytes);
  randombytes_buf(random.data(), random.size());
  std::string text(2 * bytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  text.pop_back();
  return text;
}

}  // namespace cohort::comm
