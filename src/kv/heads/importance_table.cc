// DuoAttention's table of head importance.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "io/file.h"
#include "kv/heads/profile.h"

namespace litecache::kv {
namespace {

// Size of the largest table accepted: 1,024 layers of 4,096 heads, 25 characters a number.
constexpr uint64_t kMaxTableBytes = uint64_t{128} << 20;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Removes and returns the next word of `line`; empty at the end of the line.
std::string_view NextWord(std::string_view* line) {
  size_t begin = 0;
  while (begin < line->size() && IsBlank((*line)[begin])) ++begin;
  size_t end = begin;
  while (end < line->size() && !IsBlank((*line)[end])) ++end;
  const std::string_view word = line->substr(begin, end - begin);
  line->remove_prefix(end);
  return word;
}

}  // namespace

std::vector<float> ReadImportanceTable(const std::filesystem::path& path, const Layout& layout) {
  const std::string text = io::ReadTextFile(path, kMaxTableBytes);
  std::vector<float> table;  // [layers][q_heads]
  table.reserve(static_cast<size_t>(layout.layers * layout.q_heads));
  std::string_view rest = text;
  int64_t rows = 0;
  int64_t columns = 0;
  for (int64_t line_number = 1; !rest.empty(); ++line_number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::vector<float> values;
    for (std::string_view word = NextWord(&line); !word.empty(); word = NextWord(&line)) {
      double value = 0;
      const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc() || stop != word.data() + word.size() || !std::isfinite(value)) {
        throw FileError("{}: line {}, column {}: '{}' is not a number", path.string(), line_number,
                        values.size() + 1, word.substr(0, 40));
      }
      values.push_back(static_cast<float>(std::clamp(value, 0.0, 1.0)));
    }
    if (values.empty()) continue;
    const auto width = static_cast<int64_t>(values.size());
    if (rows == 0) columns = width;
    if (width != columns || (columns != layout.kv_heads && columns != layout.q_heads)) {
      throw FileError(
          "{}: line {} has {} columns; this model has {} KV heads and {} query heads a layer, a "
          "column each in all lines",
          path.string(), line_number, width, layout.kv_heads, layout.q_heads);
    }
    if (++rows > layout.layers) {
      throw FileError("{}: line {}: more rows than the model's {} layers", path.string(),
                      line_number, layout.layers);
    }
    for (int64_t head = 0; head < layout.q_heads; ++head) {
      table.push_back(values[static_cast<size_t>(head * columns / layout.q_heads)]);
    }
  }
  if (rows != layout.layers) {
    throw FileError("{}: {} rows; the model has {} layers", path.string(), rows, layout.layers);
  }
  return table;
}

}  // namespace litecache::kv
