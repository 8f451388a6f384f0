#include "tokenizer/gguf_tokenizer_writer.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "io/file.h"
#include "io/json.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/gguf_pre_tokenizer.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {
namespace {

namespace fs = std::filesystem;

std::string_view TypeOf(const Json& json) {
  const Json* type = FindField(json, "type");
  if (type == nullptr || !type->is_string()) return "";
  return type->get_ref<const std::string&>();
}

// The steps of a field of tokenizer.json, without nesting; `list`: where a Sequence has them.
void AppendSteps(const Json& json, const char* list, Json* steps) {
  if (TypeOf(json) == "Sequence") {
    for (const Json& step : RequireField(json, list, "tokenizer.json: ")) {
      AppendSteps(step, list, steps);
    }
  } else if (!json.is_null()) {
    steps->push_back(json);
  }
}

Json Steps(const Json& tokenizer, const char* key, const char* list) {
  Json steps = Json::array();
  if (const Json* field = FindField(tokenizer, key)) AppendSteps(*field, list, &steps);
  return steps;
}

// How texts are split, without what makes no difference.
Json Splitting(const Json& tokenizer) {
  Json steps = Steps(tokenizer, "pre_tokenizer", "pretokenizers");
  for (Json& step : steps) {
    if (TypeOf(step) != "ByteLevel") continue;
    step = {{"type", "ByteLevel"},
            {"add_prefix_space", step.value("add_prefix_space", true)},
            {"use_regex", step.value("use_regex", true)}};
  }
  return steps;
}

Json Normalizing(const Json& tokenizer) { return Steps(tokenizer, "normalizer", "normalizers"); }

Json Decoding(const Json& tokenizer) {
  Json steps = Steps(tokenizer, "decoder", "decoders");
  for (Json& step : steps) {
    if (TypeOf(step) == "ByteLevel") step = Json::object({{"type", "ByteLevel"}});
  }
  return steps;
}

// The ids that are put around a text, which is null; empty: there are none.
Json Framing(const Json& tokenizer) {
  Json frame = Json::array();
  for (const Json& step : Steps(tokenizer, "post_processor", "processors")) {
    if (TypeOf(step) == "ByteLevel") continue;
    if (TypeOf(step) != "TemplateProcessing") return step;
    for (const Json& part : step.at("single")) {
      if (const Json* special = FindField(part, "SpecialToken")) {
        const auto& name = special->at("id").get_ref<const std::string&>();
        for (const Json& id : step.at("special_tokens").at(name).at("ids")) frame.push_back(id);
      } else {
        frame.push_back(nullptr);
      }
    }
  }
  return frame.size() == 1 ? Json::array() : frame;
}

Json MergePairs(const Json& model) {
  Json pairs = Json::array();
  for (const Json& merge : model.at("merges")) {
    if (!merge.is_string()) {
      pairs.push_back(merge);
      continue;
    }
    const auto& text = merge.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    pairs.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return pairs;
}

// [id, text, special, the other flags] in the order of ids.
Json AddedTokenList(const Json& tokenizer) {
  const Json normalizing = Normalizing(tokenizer);
  const bool composes = normalizing.size() == 1 && TypeOf(normalizing[0]) == "NFC";
  Json all = Json::array();
  const Json* added = FindField(tokenizer, "added_tokens");
  for (const Json& token : added == nullptr ? Json::array() : *added) {
    const auto& text = token.at("content").get_ref<const std::string&>();
    const bool special = token.value("special", false);
    // Whether it is looked for in the text before or behind normalizers that do not change it.
    const bool same = normalizing.empty() ||
                      (composes && std::ranges::all_of(text, [](char c) { return c >= 0; }));
    all.push_back({token.at("id"), text, special, !same && token.value("normalized", !special),
                   token.value("lstrip", false), token.value("rstrip", false),
                   token.value("single_word", false)});
  }
  std::sort(all.begin(), all.end());
  return all;
}

// All that decides on the ids of a text but the vocabulary, by the fields that have it.
Json Comparable(const Json& tokenizer) {
  const Json& model = tokenizer.at("model");
  Json all = {{"normalizer", Normalizing(tokenizer)},      {"pre_tokenizer", Splitting(tokenizer)},
              {"post_processor", Framing(tokenizer)},      {"decoder", Decoding(tokenizer)},
              {"added_tokens", AddedTokenList(tokenizer)}, {"model.merges", MergePairs(model)}};
  for (const char* flag : {"ignore_merges", "byte_fallback"}) {
    all[std::string("model.") + flag] = model.value(flag, false);
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    all[std::string("model.") + affix] = StringOr(model, affix, "", "model");
  }
  const Json* unknown = FindField(model, "unk_token");
  all["model.unk_token"] = unknown == nullptr ? Json() : *unknown;
  all["model.fuse_unk"] = unknown != nullptr && model.value("fuse_unk", false);
  return all;
}

const PreTokenizerSpec* FindPreTokenizer(const Json& tokenizer) {
  const bool ignores = tokenizer.at("model").value("ignore_merges", false);
  for (const PreTokenizerSpec& spec : PreTokenizers()) {
    const Json json = SplittingJson(spec);
    if (spec.ignore_merges == ignores && Splitting(json) == Splitting(tokenizer) &&
        Normalizing(json) == Normalizing(tokenizer)) {
      return &spec;
    }
  }
  return nullptr;
}

// SentencePiece's scores, of which only the order matters: pieces that are merged earlier have
// higher ones.
std::vector<float> Scores(const Json& model, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string, float> by_piece;
  for (const Json& pair : MergePairs(model)) {
    std::string piece = pair[0].get<std::string>() + pair[1].get<std::string>();
    by_piece.emplace(std::move(piece), -static_cast<float>(by_piece.size()));
  }
  std::vector<float> scores;
  for (const std::string& token : tokens) {
    const auto found = by_piece.find(token);
    scores.push_back(found == by_piece.end() ? -static_cast<float>(by_piece.size())
                                             : found->second);
  }
  return scores;
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

Tokens ListTokens(const Json& tokenizer, int64_t rows, bool sentence_piece,
                  const std::string& name) {
  Tokens tokens;
  for (int64_t id = 0; id < rows; ++id) tokens.texts.push_back(fmt::format("[PAD{}]", id));
  tokens.types.assign(tokens.texts.size(), kUnused);
  const auto set = [&](int64_t id, const std::string& text, TokenType type) {
    if (id < 0 || id >= rows) {
      throw Unsupported("{}: token {} '{}' is beyond the model's {} embeddings", name, id, text,
                        rows);
    }
    tokens.texts[static_cast<size_t>(id)] = text;
    tokens.types[static_cast<size_t>(id)] = type;
  };
  const Json& model = tokenizer.at("model");
  const bool bytes = sentence_piece && model.value("byte_fallback", false);
  for (const auto& [text, id] : model.at("vocab").items()) {
    const bool is_byte = bytes && text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
    set(id.get<int64_t>(), text, is_byte ? kByte : kNormal);
  }
  if (const Json* added = FindField(tokenizer, "added_tokens")) {
    for (const Json& token : *added) {
      const auto& text = token.at("content").get_ref<const std::string&>();
      const bool unknown = sentence_piece && model.value("unk_token", Json()) == Json(text);
      set(token.at("id").get<int64_t>(), text,
          unknown                         ? kUnknown
          : token.value("special", false) ? kControl
                                          : kUserDefined);
    }
  }
  return tokens;
}

// Special tokens by the names that GGUF has for them.
void AddSpecialTokens(const ChatTemplateSources& sources, const std::vector<std::string>& texts,
                      int32_t bos_id, std::span<const int32_t> eos_ids,
                      io::GgufMetadata* metadata) {
  std::unordered_map<std::string_view, int64_t> ids;
  for (size_t id = 0; id < texts.size(); ++id) ids.emplace(texts[id], id);
  const auto named = [&](const char* token, int64_t fallback) {
    const auto text = sources.special_tokens.find(token);
    if (text == sources.special_tokens.end()) return fallback;
    const auto found = ids.find(text->second);
    return found == ids.end() ? fallback : found->second;
  };
  const auto add = [&](std::string_view name, int64_t id) {
    if (id >= 0) metadata->AddInt(fmt::format("tokenizer.ggml.{}_token_id", name), id);
  };
  add("bos", named("bos_token", bos_id));
  const int64_t eos = named("eos_token", eos_ids.empty() ? -1 : eos_ids[0]);
  add("eos", eos);
  std::vector<std::string_view> others = {"eom", "eot"};
  for (const int32_t id : eos_ids) {
    if (id == eos || others.empty()) continue;
    add(others.back(), id);
    others.pop_back();
  }
  add("unknown", named("unk_token", -1));
  add("padding", named("pad_token", -1));
}

void AddChatTemplates(const ChatTemplateSources& sources, io::GgufMetadata* metadata) {
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  std::vector<std::string> others;
  for (const auto& [name, source] : sources.templates) {
    if (name == "default") {
      metadata->AddText(kTemplate, source.second);
    } else {
      others.push_back(name);
      metadata->AddText(fmt::format("{}.{}", kTemplate, name), source.second);
    }
  }
  if (!others.empty()) metadata->AddTexts("tokenizer.chat_templates", others);
}

Json ReadTokenizer(const fs::path& directory) {
  Tokenizer::FromModel(directory);  // throws for a file that is none
  return io::ReadJsonFile(directory / "tokenizer.json");
}

}  // namespace

void AddGgufTokenizer(const fs::path& directory, int64_t rows, int32_t bos_id,
                      std::span<const int32_t> eos_ids, io::GgufMetadata* metadata) {
  const Json tokenizer = ReadTokenizer(directory);
  const std::string name = (directory / "tokenizer.json").string();
  const Json& model = tokenizer.at("model");
  const PreTokenizerSpec* spec = FindPreTokenizer(tokenizer);
  const bool sentence_piece = spec == nullptr && Splitting(tokenizer).empty();
  if (spec == nullptr && !sentence_piece) {
    std::vector<std::string_view> known;
    for (const PreTokenizerSpec& other : PreTokenizers()) known.push_back(other.name);
    throw Unsupported(
        "{}: fields 'normalizer', 'pre_tokenizer' and 'ignore_merges' together are none that "
        "LiteCache knows a GGUF name for ({}); {}",
        name, Join(known), io::kWriteDirectory);
  }
  const auto [texts, types] = ListTokens(tokenizer, rows, sentence_piece, name);
  metadata->AddText(gguf_keys::kModel, sentence_piece ? "llama" : "gpt2");
  metadata->AddText(gguf_keys::kPre, sentence_piece ? "default" : spec->name);
  metadata->AddTexts(gguf_keys::kTokens, texts);
  metadata->AddInts(gguf_keys::kTypes, types);
  if (sentence_piece) {
    metadata->AddFloats(gguf_keys::kScores, Scores(model, texts));
    const Json normalizing = Normalizing(tokenizer);
    metadata->AddBool(gguf_keys::kSpacePrefix,
                      !normalizing.empty() && TypeOf(normalizing[0]) == "Prepend");
  } else {
    std::vector<std::string> merges;
    for (const Json& pair : MergePairs(model)) {
      merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
    }
    metadata->AddTexts(gguf_keys::kMerges, merges);
  }
  const Json frame = Framing(tokenizer);
  const bool frames = frame.is_array() && !frame.empty();
  metadata->AddBool(gguf_keys::kAddBos, frames && !frame.front().is_null());
  metadata->AddBool(gguf_keys::kAddEos, frames && !frame.back().is_null());
  const ChatTemplateSources sources = FindChatTemplates(directory);
  AddSpecialTokens(sources, texts, bos_id, eos_ids, metadata);
  AddChatTemplates(sources, metadata);
}

void CheckGgufTokenizer(const io::Gguf& gguf, const fs::path& directory) {
  const Json expected = ReadTokenizer(directory), written = TokenizerJsonOfGguf(gguf);
  const std::string name = (directory / "tokenizer.json").string();
  const auto refuse = [&](const std::string& field, const Json& value) {
    throw Unsupported("{}: field '{}' = {} has no equal in GGUF; {}", name, field, Shown(value),
                      io::kWriteDirectory);
  };
  const Json read = Comparable(written), wanted = Comparable(expected);
  for (const auto& [field, value] : wanted.items()) {
    if (read.at(field) != value) refuse(field, value);
  }
  const Json& vocabulary = written.at("model").at("vocab");
  for (const auto& [text, id] : expected.at("model").at("vocab").items()) {
    const Json* found = FindField(vocabulary, text);
    if (found == nullptr || *found != id) refuse("model.vocab." + text, id);
  }
  // Tokens that other files add, which the directory's tokenizer has, too.
  const auto of_directory = Tokenizer::FromModel(directory);
  const auto of_json = Tokenizer::FromFile(directory / "tokenizer.json");
  if (of_directory->vocab_size() != of_json->vocab_size()) {
    throw Unsupported("{}: tokenizer_config.json adds tokens that it does not have; {}", name,
                      io::kWriteDirectory);
  }
}

}  // namespace litecache::tokenizer
