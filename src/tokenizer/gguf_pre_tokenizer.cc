#include "tokenizer/gguf_pre_tokenizer.h"

#include <array>
#include <utility>

#include "tokenizer/json_fields.h"

namespace litecache::tokenizer {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeed =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek V3's, which Hunyuan has, too.
constexpr std::string_view kDeepSeekFirst[] = {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+"};
constexpr std::string_view kDeepSeek =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<PreTokenizerSpec, 22> kPreTokenizers = {{
    {.name = "llama-bpe", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "dbrx", .pattern = kLlama3},
    {.name = "smaug-bpe", .pattern = kLlama3},
    {.name = "chatglm-bpe", .pattern = kLlama3},
    {.name = "glm4", .pattern = kLlama3, .ignore_merges = true},
    {.name = "qwen2", .pattern = kQwen2, .nfc = true},
    {.name = "qwen35", .pattern = kQwen35, .nfc = true},
    {.name = "deepseek-r1-qwen", .pattern = kQwen2},
    {.name = "tekken", .pattern = kTekken, .ignore_merges = true, .adds_bos = true},
    {.name = "gpt-4o", .pattern = kO200k},
    {.name = "minimax-m2", .pattern = kO200k},
    {.name = "seed-coder", .pattern = kSeed},
    {.name = "gpt-2", .pattern = ""},
    {.name = "exaone4", .pattern = ""},
    {.name = "olmo", .pattern = "", .nfc = true},
    {.name = "smollm", .pattern = "", .single_digits = true},
    {.name = "refact", .pattern = "", .single_digits = true},
    {.name = "starcoder", .pattern = "", .single_digits = true},
    {.name = "command-r", .pattern = "", .single_digits = true, .nfc = true},
    {.name = "hunyuan-dense", .pattern = kDeepSeek, .first = kDeepSeekFirst},
}};

}  // namespace

std::span<const PreTokenizerSpec> PreTokenizers() { return kPreTokenizers; }

Json SplittingJson(const PreTokenizerSpec& spec) {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", spec.pattern.empty()}};
  Json splits = Json::array();
  if (spec.single_digits) splits.push_back({{"type", "Digits"}, {"individual_digits", true}});
  const auto split = [&](std::string_view pattern) {
    splits.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  };
  for (const std::string_view pattern : spec.first) split(pattern);
  if (!spec.pattern.empty()) split(spec.pattern);
  splits.push_back(byte_level);
  return {{"normalizer", spec.nfc ? Json{{"type", "NFC"}} : Json()},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}}}};
}

}  // namespace litecache::tokenizer
