#include "server/access.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "server/api/error.h"
#include "server/api/json.h"
#include "server/page/page.h"

namespace litecache::server {

bool IsHealth(std::string_view path) { return path == "/health" || path == "/ping"; }

void Access::CheckHost(const HttpRequest& request) const {
  const std::string_view host = request.Header("host");
  if (IsHealth(request.path) || hosts_.Allows(host)) return;
  throw ApiError(403, "invalid_request_error", "host_not_allowed", "",
                 fmt::format("the host {} is not allowed: use localhost or 127.0.0.1, or start "
                             "the server with --allowed-host and that name",
                             Excerpt(std::string(host))));
}

void Access::CheckKey(const HttpRequest& request) const {
  if (IsHealth(request.path) || IsPage(request.path) || keys_.empty() || KeyOf(request)) return;
  const bool sent =
      !request.Header("authorization").empty() || !request.Header("x-api-key").empty();
  throw ApiError(401, "invalid_request_error", "invalid_api_key", "",
                 sent ? "the API key is not one of this server's: send 'Authorization: Bearer KEY'"
                      : "this server requires an API key: send 'Authorization: Bearer KEY'");
}

std::optional<size_t> Access::KeyOf(const HttpRequest& request) const {
  if (const auto key = keys_.Find(request.Header("authorization"))) return key;
  // How clients of Anthropic's API send it.
  return keys_.Find(fmt::format("Bearer {}", request.Header("x-api-key")));
}

std::optional<HttpResponse> Access::CheckHeader(const HttpRequest& request) const {
  try {
    CheckHost(request);
    CheckKey(request);
  } catch (const ApiError& error) {
    return error.Response(ErrorShapeOf(request.path));
  }
  return std::nullopt;
}

uint64_t Access::ClientOf(const HttpRequest& request) const {
  if (const auto key = KeyOf(request)) return *key + 1;
  return std::hash<std::string>()(request.peer);
}

bool Access::OriginAllowed(std::string_view origin) const {
  return !origin.empty() && std::any_of(origins_.begin(), origins_.end(), [&](const auto& one) {
    return one == "*" || one == origin;
  });
}

bool Access::IsPreflight(const HttpRequest& request) const {
  return request.method == "OPTIONS" && OriginAllowed(request.Header("origin"));
}

void Access::AddCorsHeaders(Exchange& exchange) const {
  const std::string_view origin = exchange.request().Header("origin");
  if (!OriginAllowed(origin)) return;
  exchange.AddHeader("Access-Control-Allow-Origin", std::string(origin));
  exchange.AddHeader("Vary", "Origin");
  if (exchange.request().method != "OPTIONS") return;
  exchange.AddHeader("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  // Whatever headers the page's client sends: the packages of OpenAI and Anthropic have a dozen of
  // their own, and new ones with each version. "*" would not cover Authorization.
  const std::string_view headers = exchange.request().Header("access-control-request-headers");
  if (!headers.empty()) exchange.AddHeader("Access-Control-Allow-Headers", std::string(headers));
  exchange.AddHeader("Access-Control-Max-Age", "600");
}

}  // namespace litecache::server
