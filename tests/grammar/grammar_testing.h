// Helpers shared by the tests of grammars.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace litecache::grammar {

// One token per byte.
inline std::shared_ptr<const Vocabulary> ByteVocabulary() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  return std::make_shared<Vocabulary>(std::move(bytes));
}

// Whether the grammar, over ByteVocabulary(), accepts the whole text.
inline bool Accepts(const Grammar& grammar, std::string_view text) {
  const auto at = grammar.NewConstraint();
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (!MaskAllows(at->Mask(), byte)) return false;
    at->Accept(byte);
  }
  return at->Complete();
}

}  // namespace litecache::grammar
