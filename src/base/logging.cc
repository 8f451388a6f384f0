#include "base/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "base/printable.h"

namespace litecache {
namespace {

// The message. Some quote what a file or a client has sent.
class PrintableMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = Printable({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableMessage>();
  }
};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void Log(LogLevel level, fmt::string_view format, fmt::format_args arguments) {
  spdlog::logger& logger = *spdlog::default_logger_raw();
  const auto as = SpdlogLevel(level);
  if (logger.should_log(as)) logger.log(as, fmt::vformat(format, arguments));
}

void InitLogging(std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    throw InvalidArgument("--log-level: '{}' is not one of trace, debug, info, warn, error, off",
                          level);
  }
  static const auto logger = spdlog::stderr_color_mt("litecache");
  spdlog::set_default_logger(logger);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessage>('*').set_pattern("%^%l%$: %*");
  spdlog::set_formatter(std::move(formatter));
  spdlog::set_level(parsed);
}

}  // namespace litecache
