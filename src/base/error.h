// Errors caused by a caller or a file are exceptions derived from litecache::Error, with a message
// that names the cause and the fix. A violated internal invariant is an LC_CHECK, which aborts.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace litecache {

// Base of everything LiteCache throws on purpose.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// A flag, argument or request field has a value that cannot work.
class InvalidArgument : public Error {
 public:
  template <typename... Args>
  explicit InvalidArgument(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A file is missing, unreadable, truncated or malformed. The message starts with its path.
class FileError : public Error {
 public:
  template <typename... Args>
  explicit FileError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A well-formed input requests something unsupported; the message names the field and its value.
class Unsupported : public Error {
 public:
  template <typename... Args>
  explicit Unsupported(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A memory budget or context limit would be exceeded. The message gives the numbers.
class CapacityError : public Error {
 public:
  template <typename... Args>
  explicit CapacityError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);
}  // namespace internal

}  // namespace litecache

// Aborts with file, line, condition and an optional fmt message. Always on, also in release builds.
#define LC_CHECK(condition, ...)                                                            \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::litecache::internal::CheckFailed(__FILE__, __LINE__, #condition,                    \
                                         ::litecache::internal::CheckMessage(__VA_ARGS__)); \
    }                                                                                       \
  } while (false)

namespace litecache::internal {
inline std::string CheckMessage() { return {}; }
template <typename... Args>
std::string CheckMessage(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace litecache::internal
