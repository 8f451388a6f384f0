#include "server/host_check.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/error.h"

namespace litecache::server {
namespace {

// Lower case, without brackets and the trailing dot; IPv6 in its shortest form.
std::string Canonical(std::string_view name) {
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  std::string text(name);
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    char shortest[INET6_ADDRSTRLEN];
    return inet_ntop(AF_INET6, &v6, shortest, sizeof(shortest));
  }
  if (text.ends_with('.')) text.pop_back();
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  }
  return text;
}

// "name" of "name:8080"; the brackets of "[::1]:8080" stay.
std::string_view WithoutPort(std::string_view header) {
  const size_t colon = header.rfind(':');
  if (colon == std::string_view::npos || header.ends_with(']')) return header;
  const std::string_view port = header.substr(colon + 1);
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits ? header.substr(0, colon) : header;
}

}  // namespace

bool IsLoopback(std::string_view address) {
  const std::string text(address);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

HostCheck::HostCheck(const std::vector<std::string>& names) : all_(false) {
  for (const std::string& name : names) {
    if (name == "*") {
      all_ = true;
      continue;
    }
    std::string canonical = Canonical(name);
    const bool colon = canonical.find(':') != std::string::npos;
    in6_addr v6{};
    const bool is_v6 = colon && inet_pton(AF_INET6, canonical.c_str(), &v6) == 1;
    if (canonical.empty() || (colon && !is_v6) ||
        canonical.find_first_of("/[]@*, \t\r\n") != std::string::npos) {
      throw InvalidArgument(
          "--allowed-host '{}': expected a host name or address without scheme and port, such as "
          "llm.example.org, or * for any",
          name);
    }
    names_.push_back(std::move(canonical));
  }
}

bool HostCheck::Allows(std::string_view header) const {
  if (all_ || header.empty()) return true;
  const std::string name = Canonical(WithoutPort(header));
  return name == "localhost" || IsLoopback(name) ||
         std::find(names_.begin(), names_.end(), name) != names_.end();
}

}  // namespace litecache::server
