// Turns JSON text from outside (requests, files, strings in either) into values. All such text is
// parsed here.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace litecache::io {

enum class DuplicateKeys { kLastWins, kReject };

// Limits on a text. Copying, comparing and writing a value recurse once per level, and a value
// takes up to 25 times as much memory as its text: [[],[],...] takes 48 bytes for 3.
struct JsonLimits {
  int depth = 128;            // nested arrays and objects
  size_t values = 8'000'000;  // in the whole text, objects and arrays included
  size_t keys = 4'000'000;    // in one object
  // For requests: a prompt of a million token ids fits. Ordered objects are searched linearly.
  static constexpr JsonLimits OfRequest() { return {128, 2'000'000, 10'000}; }
};

// Why a text is not JSON or cannot be accepted.
class JsonError : public Error {
 public:
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  JsonError(const std::string& reason, bool is_limit, size_t offset = kNowhere)
      : Error(reason), is_limit_(is_limit), offset_(offset) {}
  // Whether a limit was exceeded; the text may be valid JSON.
  bool is_limit() const { return is_limit_; }
  // The byte offset of a syntax error, or kNowhere.
  size_t offset() const { return offset_; }

 private:
  bool is_limit_;
  size_t offset_;
};

// Takes time proportional to the text (times the logarithm of an object's size), and a bounded
// amount of stack. `Json` is nlohmann::json or nlohmann::ordered_json. Subtracts the text's values
// from limits->values, for texts that are parsed one after another. Throws JsonError.
template <typename Json>
Json ParseLimitedJson(std::string_view text, JsonLimits* limits,
                      DuplicateKeys duplicates = DuplicateKeys::kLastWins);

extern template nlohmann::json ParseLimitedJson(std::string_view, JsonLimits*, DuplicateKeys);
extern template nlohmann::ordered_json ParseLimitedJson(std::string_view, JsonLimits*,
                                                        DuplicateKeys);

}  // namespace litecache::io
