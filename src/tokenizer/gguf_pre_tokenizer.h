// What readers and writers of GGUF tokenizers have in common: keys, types of tokens, and how words
// are split.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace litecache::tokenizer {

namespace gguf_keys {
inline constexpr const char* kModel = "tokenizer.ggml.model";
inline constexpr const char* kPre = "tokenizer.ggml.pre";
inline constexpr const char* kTokens = "tokenizer.ggml.tokens";
inline constexpr const char* kTypes = "tokenizer.ggml.token_type";
inline constexpr const char* kScores = "tokenizer.ggml.scores";
inline constexpr const char* kMerges = "tokenizer.ggml.merges";
inline constexpr const char* kSpacePrefix = "tokenizer.ggml.add_space_prefix";
inline constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
inline constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";
}  // namespace gguf_keys

// Values of token_type.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// Words are split as the tokenizer.json of the model does that llama.cpp names a pre-tokenizer
// after.
struct PreTokenizerSpec {
  std::string_view name;
  std::string_view pattern;                      // empty: GPT-2's, which is ByteLevel's own
  std::span<const std::string_view> first = {};  // patterns that split before it
  bool single_digits = false;
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;  // where the file does not say
};

// Of those that split alike, the first is the one to write.
std::span<const PreTokenizerSpec> PreTokenizers();

// {"normalizer": ..., "pre_tokenizer": ...} as in tokenizer.json.
nlohmann::json SplittingJson(const PreTokenizerSpec& spec);

}  // namespace litecache::tokenizer
