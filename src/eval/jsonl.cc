#include "eval/jsonl.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "io/json.h"

namespace litecache::eval {

void CheckNesting(std::string_view json, const std::string& where) {
  constexpr int kDeepest = 100;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) throw FileError("{}: nested more than {} deep", where, kDeepest);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

void ForEachJsonLine(std::string_view text, const std::string& name,
                     const std::function<void(JsonLine)>& each) {
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string where = fmt::format("{}:{}", name, line);
    CheckNesting(content, where);
    each(
        {io::ParseJson(content, name, io::DuplicateKeys::kLastWins, line), line, std::move(where)});
  }
}

}  // namespace litecache::eval
