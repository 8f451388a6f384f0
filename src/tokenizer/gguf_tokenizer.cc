#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/gguf_pre_tokenizer.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

constexpr const char *kModel = gguf_keys::kModel, *kPre = gguf_keys::kPre;
constexpr const char *kTokens = gguf_keys::kTokens, *kTypes = gguf_keys::kTypes;
constexpr const char* kScores = gguf_keys::kScores;

struct Token {
  std::string text;
  int64_t type = kNormal;
};

std::vector<Token> ReadTokens(const io::Gguf& gguf) {
  const std::vector<std::string_view> texts = gguf.Strings(kTokens);
  std::vector<int64_t> types;
  if (gguf.HasArray(kTypes)) types = gguf.Integers(kTypes);
  if (texts.size() > size_t{kMaxTokenId} || (!types.empty() && types.size() != texts.size())) {
    gguf.fields().Fail(
        kTokens, fmt::format("must hold a token for each of the {} types, at most {}", types.size(),
                             kMaxTokenId));
  }
  std::vector<Token> tokens(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!IsValidUtf8(texts[id])) {
      throw FileError("{}: {}[{}] is not UTF-8", gguf.fields().name(), kTokens, id);
    }
    tokens[id] = {std::string(texts[id]), types.empty() ? int64_t{kNormal} : types[id]};
  }
  return tokens;
}

std::optional<size_t> SpecialId(const io::Gguf& gguf, const char* key, size_t tokens) {
  const auto id = gguf.fields().Int(key, 0, kMaxTokenId);
  if (!id) return std::nullopt;
  if (static_cast<size_t>(*id) >= tokens) {
    gguf.fields().Fail(key, fmt::format("is not one of the {} tokens", tokens));
  }
  return static_cast<size_t>(*id);
}

bool NamesToken(const io::Gguf& gguf, const char* key, size_t tokens) {
  const auto id = gguf.fields().Int(key, INT64_MIN, INT64_MAX);
  return id && *id >= 0 && static_cast<size_t>(*id) < tokens;
}

Json AddedTokenList(const std::vector<Token>& tokens) {
  Json list = Json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = tokens[id].type;
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    list.push_back({{"id", id},
                    {"content", tokens[id].text},
                    {"special", type != kUserDefined},
                    {"normalized", false}});
  }
  return list;
}

// Ids by text. A text that two ids have is that of the first.
Json VocabularyObject(const std::vector<Token>& tokens) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) vocabulary.emplace(tokens[id].text, id);
  return vocabulary;
}

// The tokens that are put around a text.
Json PostProcessorJson(const io::Gguf& gguf, const std::vector<Token>& tokens, bool adds_bos) {
  Json parts = Json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  Json special = Json::object();
  const auto add = [&](const char* flag, bool by_default, const char* key, bool in_front) {
    if (!gguf.fields().Bool(flag).value_or(by_default)) return;
    const auto id = SpecialId(gguf, key, tokens.size());
    if (!id) return;
    const std::string& text = tokens[*id].text;
    special[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
    Json part = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
    parts.insert(in_front ? parts.begin() : parts.end(), std::move(part));
  };
  add(gguf_keys::kAddBos, adds_bos, "tokenizer.ggml.bos_token_id", true);
  add(gguf_keys::kAddEos, false, "tokenizer.ggml.eos_token_id", false);
  if (special.empty()) return nullptr;
  return {{"type", "TemplateProcessing"}, {"single", parts}, {"special_tokens", special}};
}

Json Merges(const io::Gguf& gguf) {
  Json merges = Json::array();
  for (const std::string_view merge : gguf.Strings(gguf_keys::kMerges)) {
    merges.push_back(RepairUtf8(merge));
  }
  return merges;
}

Json ByteLevelTokenizer(const io::Gguf& gguf, const std::vector<Token>& tokens) {
  const std::string name = gguf.fields().String(kPre).value_or("default");
  const auto spec = std::ranges::find(PreTokenizers(), name, &PreTokenizerSpec::name);
  if (spec == PreTokenizers().end()) {
    std::string known;
    for (const PreTokenizerSpec& other : PreTokenizers()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", other.name);
    }
    throw Unsupported(
        "{}: field '{}' = \"{}\" is not supported: how words are split is known of {}{}",
        gguf.fields().name(), kPre, name, known,
        name == "default" ? "; a recent llama.cpp writes which it is when it converts the model"
                          : "");
  }
  const Json splitting = SplittingJson(*spec);
  return {{"normalizer", splitting["normalizer"]},
          {"pre_tokenizer", splitting["pre_tokenizer"]},
          {"post_processor", PostProcessorJson(gguf, tokens, spec->adds_bos)},
          {"decoder", Json::object({{"type", "ByteLevel"}})},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", spec->ignore_merges},
            {"vocab", VocabularyObject(tokens)},
            {"merges", Merges(gguf)}}}};
}

// SentencePiece joins the two pieces whose join has the highest score: the merges of BPE in order
// are all splits of a piece into two pieces, from the highest score to the lowest. As Transformers
// converts such a vocabulary, the longer left part comes first.
Json MergesByScore(const io::Gguf& gguf, const std::vector<Token>& tokens) {
  // Each byte of a piece is a split to look up. The longest in use have 48 bytes.
  constexpr size_t kMaxPiece = 512;
  const std::vector<float> scores = gguf.Floats(kScores);
  if (scores.size() != tokens.size()) {
    gguf.fields().Fail(kScores,
                       fmt::format("must hold a score for each of the {} tokens", tokens.size()));
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].type == kNormal) ids.emplace(tokens[id].text, id);
  }
  struct Split {
    float score;
    size_t left;  // bytes
    size_t id;    // of the join
  };
  std::vector<Split> splits;
  for (const auto& [text, id] : ids) {
    if (text.size() > kMaxPiece) {
      throw Unsupported("{}: {}[{}] has {} bytes (at most {} are supported)", gguf.fields().name(),
                        kTokens, id, text.size(), kMaxPiece);
    }
    // A NaN has no place in an order.
    if (scores[id] != scores[id]) gguf.fields().Fail(kScores, "must be numbers");
    for (size_t left = 1; left < text.size(); ++left) {
      if (ids.contains(text.substr(0, left)) && ids.contains(text.substr(left))) {
        splits.push_back({scores[id], left, id});
      }
    }
  }
  std::ranges::sort(splits, [](const Split& a, const Split& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.left != b.left ? a.left > b.left : a.id < b.id;
  });
  Json merges = Json::array();
  for (const Split& split : splits) {
    const std::string& text = tokens[split.id].text;
    merges.push_back({text.substr(0, split.left), text.substr(split.left)});
  }
  return merges;
}

// ranked: the file has merges in order, as Gemma 4's.
Json SentencePieceTokenizer(const io::Gguf& gguf, const std::vector<Token>& tokens, bool ranked) {
  const bool prefix = gguf.fields().Bool(gguf_keys::kSpacePrefix).value_or(true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "▁"}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}});
  Json decoders =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1u}, {"stop", 0u}});
  }
  Json model = {{"type", "BPE"},
                {"fuse_unk", true},
                {"byte_fallback",
                 std::ranges::any_of(tokens, [](const Token& t) { return t.type == kByte; })},
                {"vocab", VocabularyObject(tokens)},
                {"merges", ranked ? Merges(gguf) : MergesByScore(gguf, tokens)}};
  const auto unknown = std::ranges::find(tokens, int64_t{kUnknown}, &Token::type);
  if (unknown != tokens.end()) model["unk_token"] = unknown->text;
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"post_processor", PostProcessorJson(gguf, tokens, true)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model", std::move(model)}};
}

}  // namespace

bool HasTokenizer(const io::Gguf& gguf) { return gguf.fields().Has(kModel); }

Json TokenizerJsonOfGguf(const io::Gguf& gguf) {
  const std::string model = gguf.fields().RequiredString(kModel);
  if (model != "gpt2" && model != "llama" && model != "gemma4") {
    gguf.fields().Refuse(
        kModel, "gpt2 (byte-level BPE), llama (SentencePiece) and gemma4 (merges) are supported");
  }
  const std::vector<Token> tokens = ReadTokens(gguf);
  Json json = model == "gpt2" ? ByteLevelTokenizer(gguf, tokens)
                              : SentencePieceTokenizer(gguf, tokens, model == "gemma4");
  json["added_tokens"] = AddedTokenList(tokens);
  return json;
}

Json TokenizerConfigOfGguf(const io::Gguf& gguf) {
  struct Named {
    const char *name, *key;
    bool may_be_none;  // a file may have a number for it that no token has, such as 2^32 - 1
  };
  constexpr std::array<Named, 4> kNamed = {{
      {"bos_token", "tokenizer.ggml.bos_token_id", false},
      {"eos_token", "tokenizer.ggml.eos_token_id", false},
      {"unk_token", "tokenizer.ggml.unknown_token_id", true},
      {"pad_token", "tokenizer.ggml.padding_token_id", true},
  }};
  constexpr const char* kTemplate = "tokenizer.chat_template";
  Json config = Json::object();
  if (gguf.HasArray(kTokens)) {
    const std::vector<std::string_view> tokens = gguf.Strings(kTokens);
    for (const auto& [name, key, may_be_none] : kNamed) {
      if (may_be_none && !NamesToken(gguf, key, tokens.size())) continue;
      if (const auto id = SpecialId(gguf, key, tokens.size())) {
        config[name] = RepairUtf8(tokens[*id]);
      }
    }
  }
  Json templates = Json::object();
  if (const auto text = gguf.fields().String(kTemplate)) templates["default"] = RepairUtf8(*text);
  if (gguf.HasArray("tokenizer.chat_templates")) {
    for (const std::string_view name : gguf.Strings("tokenizer.chat_templates")) {
      const auto text = gguf.fields().String(fmt::format("{}.{}", kTemplate, name));
      if (text) templates[RepairUtf8(name)] = RepairUtf8(*text);
    }
  }
  if (!templates.empty()) config["chat_template"] = std::move(templates);
  return config;
}

}  // namespace litecache::tokenizer
