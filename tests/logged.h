// Captures log messages for tests.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace litecache::testing {

// The messages logged while `body` runs.
template <typename Body>
std::string Logged(const Body& body) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  body();
  spdlog::set_default_logger(before);
  return text.str();
}

}  // namespace litecache::testing
