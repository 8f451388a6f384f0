// The tokenizer and the chat templates of a GGUF model.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "io/gguf.h"

namespace litecache::tokenizer {

// Whether the file has a tokenizer.
bool HasTokenizer(const io::Gguf& gguf);

// The vocabulary as the tokenizer.json of the same tokenizer: byte-level BPE ("gpt2") with the
// pre-tokenizer that the file names, and SentencePiece's BPE ("llama"), whose merges follow from
// its scores. Throws FileError and Unsupported that name the key and the value.
nlohmann::json TokenizerJsonOfGguf(const io::Gguf& gguf);

// Special tokens and chat templates as in tokenizer_config.json.
nlohmann::json TokenizerConfigOfGguf(const io::Gguf& gguf);

}  // namespace litecache::tokenizer
