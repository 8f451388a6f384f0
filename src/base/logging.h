// Log messages, to standard error through spdlog; standard output belongs to results.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace litecache {

// Sets level and format once at start. level: "trace" | "debug" | "info" | "warn" | "error" |
// "off". Throws InvalidArgument for another word.
void InitLogging(std::string_view level);

enum class LogLevel { kDebug, kInfo, kWarning, kError };
void Log(LogLevel level, fmt::string_view format, fmt::format_args arguments);

// The functions below keep spdlog's headers, and the code that fmt's templates become in each file
// that includes them, out of everything that logs: half a second to three a file.
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, fmt::make_format_args(args...));
}

}  // namespace litecache
