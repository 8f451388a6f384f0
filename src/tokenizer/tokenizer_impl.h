// The parts of a Tokenizer, for the files that load and run it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

struct Tokenizer::Impl {
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<Bpe> model;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  AddedTokens added;
  int32_t next_added_id = 0;  // for the next added token that the model's vocabulary lacks
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;

  // -1 if there is none.
  int32_t Find(std::string_view token) const;
  // Adds a token as the package does: under its id in the vocabulary, else under the next free one.
  void AddToken(const AddedToken& token);
  // The decoder's input for an id; nullptr for an unknown id and for a special token to be left
  // out.
  const std::string* DecoderText(int32_t id, bool skip_special) const;
};

// Builds the parts from the contents of tokenizer.json, tokenizer_config.json and
// special_tokens_map.json; `name` stands for the first one's path in messages.
std::unique_ptr<Tokenizer::Impl> LoadTokenizer(const nlohmann::json& json, std::string_view name,
                                               const nlohmann::json& config,
                                               const nlohmann::json& special_map);

}  // namespace litecache::tokenizer
