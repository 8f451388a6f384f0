// Turns JSON text from outside (requests, files, strings inside of either) into values. The only
// place that does.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace litecache::io {

enum class DuplicateKeys { kLastWins, kReject };

// What a text may hold. Copying, comparing and writing a value recurse once a level, and a value
// takes up to 25 times its text: [[],[],...] 48 bytes for 3.
struct JsonLimits {
  int depth = 128;            // arrays and objects inside one another
  size_t values = 8'000'000;  // of the whole text, objects and arrays included
  size_t keys = 4'000'000;    // of one object
  // Of a request: a prompt of a million token ids fits. Ordered objects are searched linearly.
  static constexpr JsonLimits OfRequest() { return {128, 2'000'000, 10'000}; }
};

// Why a text is no JSON that can be taken.
class JsonError : public Error {
 public:
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  JsonError(const std::string& reason, bool is_limit, size_t offset = kNowhere)
      : Error(reason), is_limit_(is_limit), offset_(offset) {}
  // It may be JSON, but is beyond a limit.
  bool is_limit() const { return is_limit_; }
  // The byte where a syntax error is, or kNowhere.
  size_t offset() const { return offset_; }

 private:
  bool is_limit_;
  size_t offset_;
};

// Takes time proportional to the text (times the logarithm of an object's size), and no stack that
// depends on it. `Json` is nlohmann::json or nlohmann::ordered_json. limits->values is what is left
// afterwards, for texts that are parsed one after another. Throws JsonError.
template <typename Json>
Json ParseLimitedJson(std::string_view text, JsonLimits* limits,
                      DuplicateKeys duplicates = DuplicateKeys::kLastWins);

extern template nlohmann::json ParseLimitedJson(std::string_view, JsonLimits*, DuplicateKeys);
extern template nlohmann::ordered_json ParseLimitedJson(std::string_view, JsonLimits*,
                                                        DuplicateKeys);

}  // namespace litecache::io
