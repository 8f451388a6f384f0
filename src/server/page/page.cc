#include "server/page/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "server/api/error.h"

namespace litecache::server {
namespace {

constexpr std::string_view kFolder = "/page/";

const char* ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

}  // namespace

bool IsPage(std::string_view path) { return path == "/" || path.starts_with(kFolder); }

HttpResponse PageFile(std::string_view path) {
  const std::string_view name = path == "/" ? "index.html" : path.substr(kFolder.size());
  const auto& files = EmbeddedFiles();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const EmbeddedFile& one) { return one.name == name; });
  if (file == files.end()) throw StatusError(404, fmt::format("there is no {}", path));
  HttpResponse response;
  response.content_type = ContentType(name);
  response.body = std::string(file->contents);
  response.headers = {
      // Only these files and this server: text written by a model can neither load nor run
      // anything.
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
       "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      // Other versions of the program have other files.
      {"Cache-Control", "no-cache"},
  };
  return response;
}

}  // namespace litecache::server
