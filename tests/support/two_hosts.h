#pragma once

#include <memory>
#include <string>
#include <vector>

namespace cohort::test {

// Two hosts on one machine: network namespaces that a veth pair connects. They share no local
// socket, and so no memory by our rules. Gone with the object, with whatever still runs in them.
class TwoHosts {
 public:
  // Null, and why in `refusal`, where the system does not permit it.
  static std::unique_ptr<TwoHosts> make(std::string& refusal);
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  ~TwoHosts();

  // Host 0's is where both reach the store.
  std::string address(int host) const { return "10.213.7." + std::to_string(host + 1); }
  // `command` as it runs on `host`, in a process with the same number.
  std::vector<std::string> on(int host, const std::vector<std::string>& command) const;
  void cut_link() const;
  // Processes that run there.
  std::string processes(int host) const;

 private:
  explicit TwoHosts(std::string name) : name_(std::move(name)) {}
  std::string space(int host) const { return name_ + "-" + std::to_string(host); }

  const std::string name_;
};

}  // namespace cohort::test
