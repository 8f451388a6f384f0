// Pre-tokenizers: cut normalized text into words that the model encodes one by one.
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
  // Replaces the pieces that are no token by smaller ones; changed text goes to the arena.
  virtual void Apply(Pieces* pieces, TextArena* arena) const = 0;
};

// The pre-tokenizer that a tokenizer.json describes; `where` is its place in the file. Types:
// Sequence, Split, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, Digits, Punctuation,
// CharDelimiterSplit, FixedLength. Throws Unsupported for another type, FileError
// for malformed fields.
std::unique_ptr<PreTokenizer> LoadPreTokenizer(const nlohmann::json& json, std::string_view where,
                                               int depth = 0);

}  // namespace litecache::tokenizer
