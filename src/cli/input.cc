#include "cli/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace litecache::cli {
namespace {

bool IsSeparator(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v' || c == ',';
}

// The ids of {"ids": [...]}, {"tokens": [...]} (as this program prints them) or a bare list.
std::vector<int32_t> IdsFromJson(std::string_view text, const std::string& name) {
  auto value = io::ParseJson(text, name);
  if (value.is_object()) value = value.value(value.contains("ids") ? "ids" : "tokens", value);
  if (!value.is_array()) {
    throw InvalidArgument("{}: a JSON object needs a list \"ids\" or \"tokens\"", name);
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const auto& item : value) {
    // A non-negative integer in range; nlohmann marks these as unsigned.
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT32_MAX) {
      throw InvalidArgument("{}: item {} ({}) is not a token id", name, ids.size() + 1,
                            io::Excerpt(item));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

std::string ReadAll(int descriptor, const std::string& name) {
  std::string text;
  char chunk[1 << 16];
  while (true) {
    const ssize_t count = read(descriptor, chunk, sizeof chunk);
    if (count == 0) return text;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw FileError("{}: cannot read: {}", name, std::strerror(errno));
    }
    text.append(chunk, static_cast<size_t>(count));
    if (text.size() > io::kMaxTextBytes) {
      throw FileError("{}: more than {} bytes, too long for a prompt", name, io::kMaxTextBytes);
    }
  }
}

}  // namespace

std::string ReadStandardInput() { return ReadAll(STDIN_FILENO, "standard input"); }

std::string ReadInput(const std::string& path) {
  if (path == "-") return ReadStandardInput();
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type != std::filesystem::file_type::fifo && type != std::filesystem::file_type::character) {
    return io::ReadTextFile(path);
  }
  // `<(command)` and /dev/stdin do not report a size.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw FileError("{}: cannot open: {}", path, std::strerror(errno));
  const std::unique_ptr<const int, void (*)(const int*)> closer(&descriptor,
                                                                [](const int* d) { close(*d); });
  return ReadAll(descriptor, path);
}

std::vector<int32_t> ParseTokenIds(std::string_view text, const std::string& name) {
  std::vector<int32_t> ids;
  size_t at = 0;
  while (true) {
    while (at < text.size() && IsSeparator(text[at])) ++at;
    if (at == text.size()) return ids;
    if (ids.empty() && (text[at] == '{' || text[at] == '[')) return IdsFromJson(text, name);
    size_t end = at;
    while (end < text.size() && !IsSeparator(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0) {
      throw InvalidArgument(
          "{}: item {} ('{}') is not a token id; write integers from 0 on, separated by white "
          "space",
          name, ids.size() + 1, word.substr(0, 40));
    }
    ids.push_back(id);
    at = end;
  }
}

bool LineReader::Next(std::string* line, bool* interrupted) {
  *interrupted = false;
  while (true) {
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      *line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return true;
    }
    if (ended_) {
      if (buffer_.empty()) return false;
      *line = std::exchange(buffer_, "");
      return true;
    }
    char chunk[4096];
    const ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
    if (count > 0) {
      buffer_.append(chunk, static_cast<size_t>(count));
    } else if (count == 0) {
      ended_ = true;
    } else if (errno == EINTR) {
      *interrupted = true;
      return false;
    } else {
      throw FileError("standard input: cannot read: {}", std::strerror(errno));
    }
  }
}

}  // namespace litecache::cli
