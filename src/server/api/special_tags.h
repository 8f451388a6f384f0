// Tags that are special tokens of a model: which the answer's text must keep, and which a grammar
// names otherwise than text.
#pragma once

#include <string>
#include <string_view>

#include "litecache/engine.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

// Special tokens among the <tags> and [tags] of a text become part of the answer's text; other
// special tokens are left out as before.
void KeepSpecialTags(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                     Request* request);

// The text as a grammar spells it: special tokens as such (grammar::kControl).
std::string WithControlTokens(std::string_view text, const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::server
