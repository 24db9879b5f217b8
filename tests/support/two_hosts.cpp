#include "support/two_hosts.h"

#include <unistd.h>

#include <optional>

#include "support/child_process.h"

namespace cohort::test {
namespace {

constexpr Milliseconds kCommand{10'000};

// Runs `ip` with these arguments; what it said when it failed.
std::optional<std::string> ip(std::vector<std::string> arguments, std::string* out = nullptr) {
  arguments.insert(arguments.begin(), "ip");
  ChildProcess command(arguments);
  const auto code = command.wait(kCommand);
  command.wait_for_end_of_output(kCommand);
  if (out != nullptr) *out = command.out();
  if (code == 0) return std::nullopt;
  std::string said = command.err();
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return "ip " + arguments[1] + " " + arguments[2] + ": " + (said.empty() ? "failed" : said);
}

}  // namespace

std::unique_ptr<TwoHosts> TwoHosts::make(std::string& refusal) {
  std::unique_ptr<TwoHosts> hosts(new TwoHosts("cohort-test-" + std::to_string(::getpid())));
  const std::string a = hosts->space(0);
  const std::string b = hosts->space(1);
  try {
    for (const auto& arguments : std::vector<std::vector<std::string>>{
             {"netns", "add", a},
             {"netns", "add", b},
             {"-n", a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", b},
             {"-n", a, "address", "add", hosts->address(0) + "/24", "dev", "veth0"},
             {"-n", b, "address", "add", hosts->address(1) + "/24", "dev", "veth0"},
             {"-n", a, "link", "set", "lo", "up"},
             {"-n", b, "link", "set", "lo", "up"},
             {"-n", a, "link", "set", "veth0", "up"},
             {"-n", b, "link", "set", "veth0", "up"}}) {
      if (const auto trouble = ip(arguments)) {
        refusal = *trouble;
        return nullptr;
      }
    }
  } catch (const std::exception& error) {
    refusal = error.what();  // no `ip` on this machine
    return nullptr;
  }
  return hosts;
}

TwoHosts::~TwoHosts() {
  for (const int host : {0, 1}) {
    try {
      ip({"netns", "delete", space(host)});
    } catch (const std::exception&) {
      return;  // no `ip` on this machine: nothing was made
    }
  }
}

std::vector<std::string> TwoHosts::on(int host, const std::vector<std::string>& command) const {
  std::vector<std::string> all = {"ip", "netns", "exec", space(host)};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

void TwoHosts::cut_link() const {
  ip({"-n", space(0), "link", "set", "veth0", "down"});
}

std::string TwoHosts::processes(int host) const {
  std::string out;
  ip({"netns", "pids", space(host)}, &out);
  return out;
}

}  // namespace cohort::test
