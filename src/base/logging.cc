#include "base/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <string>

#include "base/error.h"

namespace litecache {

void InitLogging(std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    throw InvalidArgument("--log-level: '{}' is not one of trace, debug, info, warn, error, off",
                          level);
  }
  static const auto logger = spdlog::stderr_color_mt("litecache");
  spdlog::set_default_logger(logger);
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(parsed);
}

}  // namespace litecache
