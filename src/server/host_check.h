// Which Host headers are answered.
//
// A web page cannot read what another origin answers, unless its own name suddenly leads to this
// machine (DNS rebinding): then the browser takes both for the same origin. It still says the
// page's name in Host, and nobody who means a server on this machine calls it by that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::server {

class HostCheck {
 public:
  // Takes all.
  HostCheck() = default;
  // Takes localhost, every loopback address, and `names`, without regard to case; "*" takes all.
  // A name has no scheme and no port; an IPv6 address may stand in brackets. Throws
  // InvalidArgument.
  explicit HostCheck(const std::vector<std::string>& names);

  // A Host header's value, with or without a port. An empty one is taken: browsers always send it.
  bool Allows(std::string_view header) const;

 private:
  bool all_ = true;
  std::vector<std::string> names_;  // as Canonical() has them
};

// Whether a numeric address is one of the machine itself: 127.0.0.0/8 or ::1.
bool IsLoopback(std::string_view address);

}  // namespace litecache::server
