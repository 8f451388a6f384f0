// Shared by the golden conversations and the comparison with the reference: the date of rendering,
// and a request's options.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/chat_template.h"

namespace litecache::tokenizer {

// 2024-07-26 09:05:03, a Friday.
inline std::tm GoldenTime() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_hour = 9;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 5;
  time.tm_yday = 207;
  return time;
}

inline ChatTemplateOptions OptionsOf(const nlohmann::ordered_json& request) {
  ChatTemplateOptions options;
  options.now = GoldenTime();
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  options.continue_final_message = request.value("continue_final_message", false);
  if (request.contains("tools")) options.tools = request["tools"];
  if (request.contains("documents")) options.documents = request["documents"];
  if (request.contains("variables")) options.variables = request["variables"];
  if (request.contains("special_tokens")) {
    options.special_tokens = request["special_tokens"].get<std::map<std::string, std::string>>();
  }
  return options;
}

}  // namespace litecache::tokenizer
