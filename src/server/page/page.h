// The web page at /: the files of this folder, embedded in the program (cmake/embed.cmake).
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

// "/" and "/page/NAME". The files contain no model data, so they need no key.
bool IsPage(std::string_view path);
// The file at such a path; 404 if there is none.
HttpResponse PageFile(std::string_view path);

}  // namespace litecache::server
