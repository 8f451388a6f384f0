// Pre-tokenizers: split normalized text into words, which the model encodes separately.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "tokenizer/piece.h"

namespace litecache::tokenizer {

// Immutable, used by any number of threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces text pieces by smaller ones; changed text is stored in the arena.
  virtual void Apply(Pieces* pieces, TextArena* arena) const = 0;
};

// Loads the pre-tokenizer that a tokenizer.json describes; `where` is its position in the file.
// Types: Sequence, Split, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, Digits, Punctuation,
// CharDelimiterSplit, FixedLength. Throws Unsupported for another type, FileError for malformed
// fields.
std::unique_ptr<PreTokenizer> LoadPreTokenizer(const nlohmann::json& json, std::string_view where,
                                               int depth = 0);

}  // namespace litecache::tokenizer
