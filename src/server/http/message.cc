#include "server/http/message.h"

#include <fmt/core.h>

#include <ctime>
#include <iterator>

namespace litecache::server {
namespace {

// "Sat, 21 Nov 2026 08:30:00 GMT", independent of the locale.
std::string Date() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string ResponseHead(const HttpResponse& response, const HttpHeaders& more, bool http11,
                         bool keep_alive, long long body_bytes) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: litecache\r\n",
                                 response.status, ReasonPhrase(response.status), Date());
  if (response.status != 204) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
    if (body_bytes >= 0) {
      head += fmt::format("Content-Length: {}\r\n", body_bytes);
    } else if (http11) {
      head += "Transfer-Encoding: chunked\r\n";
    }
  }
  for (const auto* headers : {&response.headers, &more}) {
    for (const auto& [name, value] : *headers) head += fmt::format("{}: {}\r\n", name, value);
  }
  // HTTP/1.0 closes by default and HTTP/1.1 keeps the connection: the header is sent in both cases.
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

}  // namespace litecache::server
