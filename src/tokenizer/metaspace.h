// Metaspace: SentencePiece's visible space, shared by its pre-tokenizer and its decoder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

struct MetaspaceOptions {
  enum class Prepend { kFirst, kNever, kAlways };
  std::string replacement = "\xE2\x96\x81";  // U+2581, one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// Throws FileError for malformed or contradictory fields, Unsupported for an unknown scheme.
MetaspaceOptions LoadMetaspace(const nlohmann::json& json, std::string_view where);

// A field that holds exactly one character. Throws FileError otherwise.
char32_t SingleCharacter(const nlohmann::json& json, std::string_view key, std::string_view where);

}  // namespace litecache::tokenizer
