// Writes the tokenizer of a Hugging Face directory into a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "io/gguf.h"
#include "io/gguf_writer.h"

namespace litecache::tokenizer {

// Adds the vocabulary, the special tokens and the chat templates. rows: of the embeddings. bos_id
// (-1: none) and eos_ids are what the model's config says. Throws FileError, and Unsupported for a
// tokenizer that GGUF has no name for.
void AddGgufTokenizer(const std::filesystem::path& directory, int64_t rows, int32_t bos_id,
                      std::span<const int32_t> eos_ids, io::GgufMetadata* metadata);

// Throws Unsupported unless the tokenizer that is read from the file is that of the directory.
void CheckGgufTokenizer(const io::Gguf& gguf, const std::filesystem::path& directory);

}  // namespace litecache::tokenizer
