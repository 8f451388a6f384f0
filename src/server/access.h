// Who may call the server: host names, API keys, and web pages of other origins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/auth.h"
#include "server/host_check.h"
#include "server/http/exchange.h"
#include "server/http/message.h"

namespace litecache::server {

// Paths that need no key and answer at any time.
bool IsHealth(std::string_view path);

class Access {
 public:
  // `origins`: of web pages that may call, "*" for any.
  Access(ApiKeys keys, std::vector<std::string> origins)
      : keys_(std::move(keys)), origins_(std::move(origins)) {}

  void SetHostCheck(HostCheck check) { hosts_ = std::move(check); }

  // Throw ApiError 403, 401.
  void CheckHost(const HttpRequest& request) const;
  void CheckKey(const HttpRequest& request) const;
  // Refuses a request by its header alone, or returns nullopt.
  std::optional<HttpResponse> CheckHeader(const HttpRequest& request) const;
  // Identifies the client of a request: by its key, or by its address if no key is required.
  uint64_t ClientOf(const HttpRequest& request) const;

  // Whether a browser asks if a page of an allowed origin may call.
  bool IsPreflight(const HttpRequest& request) const;
  void AddCorsHeaders(Exchange& exchange) const;

 private:
  // The number of the key that a request brings; none if it brings none of the server's.
  std::optional<size_t> KeyOf(const HttpRequest& request) const;
  bool OriginAllowed(std::string_view origin) const;

  ApiKeys keys_;  // empty: no key is required
  std::vector<std::string> origins_;
  HostCheck hosts_;
};

}  // namespace litecache::server
