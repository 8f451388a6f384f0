// The web page at /: files of this folder, which the program carries (cmake/embed.cmake).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace litecache::server {

struct EmbeddedFile {
  std::string_view name;  // "page.css"
  std::string_view contents;
};
const std::vector<EmbeddedFile>& EmbeddedFiles();

// "/" and "/page/NAME". They hold nothing of the model's: no key is asked for.
bool IsPage(std::string_view path);
// The file at such a path; 404 where there is none.
HttpResponse PageFile(std::string_view path);

}  // namespace litecache::server
