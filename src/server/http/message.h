// HTTP requests and responses as the rest of the server uses them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // percent-decoded, without the query
  std::string query;    // as sent, without '?'
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string peer;  // the client's address, without a port
  bool http11 = true;
  bool keep_alive = true;

  // The first header with that name (lower case), or "".
  std::string_view Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// For example "Not Found".
std::string_view ReasonPhrase(int status);

// Status line and headers, including the empty line that ends them. body_bytes < 0: the length is
// unknown; the body is sent in chunks to an HTTP/1.1 client, otherwise up to the end of the
// connection.
std::string ResponseHead(const HttpResponse& response, const HttpHeaders& more, bool http11,
                         bool keep_alive, long long body_bytes);

}  // namespace litecache::server
