// A tokenizer and a chat template for models without files.
#pragma once

#include <cstdint>
#include <memory>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

// For random weights, whose tokens mean nothing: every byte of a text is a token (ids 0 to 255),
// and any other id below `vocab` is spelled as its number behind a space. Throws InvalidArgument if
// `vocab` is below 256.
std::shared_ptr<const Tokenizer> PlaceholderTokenizer(int64_t vocab);

// Each message on a line, behind its role.
ChatTemplate PlaceholderTemplate();

}  // namespace litecache::tokenizer
