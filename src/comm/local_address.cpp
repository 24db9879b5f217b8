#include "comm/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "cohort/core/error.h"
#include "comm/store_socket.h"

namespace cohort::comm {
namespace {

constexpr const char* kInterface = "COHORT_SOCKET_IFNAME";

std::optional<std::string> chosen_interface(const LaunchEnv::Environment& environment) {
  if (environment) return environment(kInterface);
  const char* value = std::getenv(kInterface);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  const int error =
      ::getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  check<Error>(error == 0, "[init] an address cannot be written: ", ::gai_strerror(error));
  return host.data();
}

// Its first IPv4 address, or else its first IPv6 one that is not link-local.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  check<Error>(::getifaddrs(&list) == 0,
               "[init] the interfaces cannot be listed: ", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::string names;
  std::string ipv6;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (names.find(one->ifa_name) == std::string::npos) {
      names += str(names.empty() ? "" : ", ", one->ifa_name);
    }
    if (name != one->ifa_name) continue;
    if (family == AF_INET) return numeric(one->ifa_addr, sizeof(sockaddr_in));
    const auto& six = *reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
    if (ipv6.empty() && !IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) {
      ipv6 = numeric(one->ifa_addr, sizeof(sockaddr_in6));
    }
  }
  check(!ipv6.empty(), "[init] ", kInterface, " is '", name,
        "', which is no interface of this host with an address; there are ", names);
  return ipv6;
}

}  // namespace

std::string local_address(const std::string& master, const LaunchEnv::Environment& environment) {
  const auto interface = chosen_interface(environment);
  if (interface && !interface->empty()) return address_of_interface(*interface);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(master.c_str(), "9", &hints, &found);
  check<StoreError>(error == 0, "[init] the host name '", master,
                    "' cannot be resolved: ", ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket sends nothing; it only chooses the route.
    const UniqueFd probe(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || ::connect(probe.get(), one->ai_addr, one->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    return numeric(reinterpret_cast<const sockaddr*>(&own), size);
  }
  throw InvalidArgument(str("[init] this host has no route to MASTER_ADDR (", master,
                            "); name an interface in ", kInterface));
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

}  // namespace cohort::comm
