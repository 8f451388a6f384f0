// Normalizers: transform text before it is split into words.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

struct NormalizedText {
  std::string text;
  // The input's first character was removed, so the first remaining one does not start the input.
  bool front_removed = false;
};

// Immutable, used by any number of threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites the text (valid UTF-8) in place. Throws CapacityError if the result is out of
  // proportion to the input.
  virtual void Apply(NormalizedText* text) const = 0;
};

// Loads the normalizer that a tokenizer.json describes; `where` is its position in the file. Types:
// Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel, Nmt,
// BertNormalizer. Throws Unsupported for another type, FileError for malformed fields.
std::unique_ptr<Normalizer> LoadNormalizer(const nlohmann::json& json, std::string_view where,
                                           int depth = 0);

}  // namespace litecache::tokenizer
