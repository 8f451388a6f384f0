// Captures log messages for tests.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace litecache::testing {

// The messages logged while `body` runs. It may throw.
template <typename Body>
std::string Logged(const Body& body) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  // The sink must not outlive the text, also where the body throws.
  const std::shared_ptr<void> restore(nullptr, [&](void*) { spdlog::set_default_logger(before); });
  body();
  return text.str();
}

}  // namespace litecache::testing
