// Logging goes to standard error through spdlog; standard output belongs to results.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace litecache {

// Sets level and format once at start. level: "trace" | "debug" | "info" | "warn" | "error" |
// "off". Throws InvalidArgument for another word.
void InitLogging(std::string_view level);

}  // namespace litecache
