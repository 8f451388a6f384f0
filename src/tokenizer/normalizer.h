// Normalizers: what happens to text before it is cut into words.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

struct NormalizedText {
  std::string text;
  // The input's first character was removed: whatever is first now does not start the input.
  bool front_removed = false;
};

// Immutable, used by any number of threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites the text (valid UTF-8) in place. Throws CapacityError where the result is beyond
  // proportion to the input.
  virtual void Apply(NormalizedText* text) const = 0;
};

// The normalizer that a tokenizer.json describes; `where` is its place in the file. Types:
// Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel, Nmt,
// BertNormalizer. Throws Unsupported for another type, FileError for malformed fields.
std::unique_ptr<Normalizer> LoadNormalizer(const nlohmann::json& json, std::string_view where,
                                           int depth = 0);

}  // namespace litecache::tokenizer
