// Which Host headers are accepted.
//
// A web page cannot read the answers of another origin, unless its own host name is made to resolve
// to this machine (DNS rebinding): then the browser treats both as one origin. The Host header
// still carries the page's name, which no legitimate client of a server on this machine uses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::server {

class HostCheck {
 public:
  // Accepts every name.
  HostCheck() = default;
  // Accepts localhost, every loopback address, and `names`, ignoring case; "*" accepts every name.
  // A name has no scheme and no port; an IPv6 address may be in brackets. Throws InvalidArgument.
  explicit HostCheck(const std::vector<std::string>& names);

  // Takes the value of a Host header, with or without a port. An empty one is allowed: browsers
  // always send the header.
  bool Allows(std::string_view header) const;

 private:
  bool all_ = true;
  std::vector<std::string> names_;  // as returned by Canonical()
};

// Whether a numeric address is a loopback address: 127.0.0.0/8 or ::1.
bool IsLoopback(std::string_view address);

}  // namespace litecache::server
