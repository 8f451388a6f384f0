// Reads tokenizer.json, tokenizer_config.json and special_tokens_map.json, or what GGUF has
// instead.
#include <map>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "io/file.h"
#include "io/json.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/tokenizer_impl.h"

namespace litecache::tokenizer {
namespace {

std::string ReadFileIfPresent(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? io::ReadTextFile(path) : std::string();
}

Json Parse(std::string_view text, std::string_view name) {
  Json json = io::ParseJson(text, std::string(name));
  if (!json.is_object()) throw FileError("{}: not a JSON object", name);
  return json;
}

AddedToken LoadAddedToken(const Json& json, std::string_view where) {
  if (!json.is_object()) throw FileError("{}: {} is not an object", where, Shown(json));
  AddedToken token;
  token.content = RequireString(json, "content", where);
  token.special = BoolOr(json, "special", false, where);
  token.single_word = BoolOr(json, "single_word", false, where);
  token.lstrip = BoolOr(json, "lstrip", false, where);
  token.rstrip = BoolOr(json, "rstrip", false, where);
  token.normalized = BoolOr(json, "normalized", !token.special, where);
  constexpr size_t kMaxContent = 4096;
  if (token.content.size() > kMaxContent) {
    throw Unsupported("{}: a token of {} bytes (at most {} are supported)", At(where, "content"),
                      token.content.size(), kMaxContent);
  }
  return token;
}

void LoadAddedTokens(const Json& json, std::string_view where, Tokenizer::Impl* impl) {
  const Json* list = FindField(json, "added_tokens");
  if (list == nullptr) return;
  AsArray(*list, At(where, "added_tokens"));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string at = At(where, "added_tokens", i);
    const AddedToken token = LoadAddedToken((*list)[i], at);
    const int32_t declared = AsTokenId(RequireField((*list)[i], "id", at), At(at, "id"));
    impl->AddToken(token);
    // The `tokenizers` package renumbers added tokens and only warns; this loader does the same.
    const int32_t given = impl->Find(token.content);
    if (given >= 0 && given != declared) {
      LogWarning("{}: \"{}\" is declared as {}, but its position gives it {}", at, token.content,
                 declared, given);
    }
  }
}

// A special token of a config file: its text, or an object that contains it.
std::optional<AddedToken> LoadNamedToken(const Json& value, std::string_view where) {
  if (value.is_string()) {
    return AddedToken{.content = value.get<std::string>(), .normalized = false, .special = true};
  }
  if (!value.is_object()) return std::nullopt;
  AddedToken token = LoadAddedToken(value, where);
  token.special = true;
  return token;
}

// Adds tokens that a config file declares and tokenizer.json lacks, in the order of their ids.
void AddDeclaredTokens(const Json& config, std::string_view where, Tokenizer::Impl* impl) {
  const Json* declared = FindField(config, "added_tokens_decoder");
  if (declared == nullptr || !declared->is_object()) return;
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [key, value] : declared->items()) {
    const std::string at = At(where, fmt::format("added_tokens_decoder[\"{}\"]", key));
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos) {
      throw FileError("{}: the key is not a token id", at);
    }
    by_id.emplace(std::stoll(key), LoadAddedToken(value, at));
  }
  for (const auto& [id, token] : by_id) {
    const auto known = impl->added.ids().find(token.content);
    if (known != impl->added.ids().end() && *impl->added.Find(known->second) == token) continue;
    impl->AddToken(token);
  }
}

void AddNamedTokens(const Json& config, std::string_view where, Tokenizer::Impl* impl) {
  const auto add = [&](const Json& value, const std::string& at) {
    const std::optional<AddedToken> token = LoadNamedToken(value, at);
    if (token && !impl->added.ids().contains(token->content)) impl->AddToken(*token);
  };
  for (const std::string_view key : {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"}) {
    if (const Json* value = FindField(config, key)) add(*value, At(where, key));
  }
  for (const std::string_view key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = FindField(config, key);
    if (list == nullptr || !list->is_array()) continue;
    for (size_t i = 0; i < list->size(); ++i) add((*list)[i], At(where, key, i));
  }
}

std::optional<int32_t> NamedId(const Json& config, const Json& special_map, std::string_view key,
                               const Tokenizer::Impl& impl) {
  for (const Json* file : {&config, &special_map}) {
    const Json* value = FindField(*file, key);
    if (value == nullptr) continue;
    const std::optional<AddedToken> token = LoadNamedToken(*value, key);
    if (!token || token->content.empty()) continue;
    const int32_t id = impl.Find(token->content);
    if (id >= 0) return id;
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer::Impl> LoadTokenizer(const Json& json, std::string_view name,
                                               const Json& config, const Json& special_map) {
  const std::string where = fmt::format("{}: ", name);
  const std::string version = StringOr(json, "version", "1.0", where);
  if (version != "1.0") {
    throw Unsupported("{}: \"{}\" is not supported (only \"1.0\" is)", At(where, "version"),
                      version);
  }
  auto impl = std::make_unique<Tokenizer::Impl>();
  impl->model = LoadBpe(RequireField(json, "model", where), At(where, "model"));
  if (const Json* normalizer = FindField(json, "normalizer")) {
    impl->normalizer = LoadNormalizer(*normalizer, At(where, "normalizer"));
  }
  if (const Json* pre_tokenizer = FindField(json, "pre_tokenizer")) {
    impl->pre_tokenizer = LoadPreTokenizer(*pre_tokenizer, At(where, "pre_tokenizer"));
  }
  if (const Json* post_processor = FindField(json, "post_processor")) {
    impl->post_processor = LoadPostProcessor(*post_processor, At(where, "post_processor"));
  }
  const Json* decoder = FindField(json, "decoder");
  impl->decoder =
      decoder == nullptr ? DefaultDecoder() : LoadDecoder(*decoder, At(where, "decoder"));
  impl->next_added_id = static_cast<int32_t>(impl->model->size());
  LoadAddedTokens(json, where, impl.get());

  AddDeclaredTokens(config, "tokenizer_config.json: ", impl.get());
  AddNamedTokens(config, "tokenizer_config.json: ", impl.get());
  AddNamedTokens(special_map, "special_tokens_map.json: ", impl.get());
  impl->bos_id = NamedId(config, special_map, "bos_token", *impl);
  impl->eos_id = NamedId(config, special_map, "eos_token", *impl);
  return impl;
}

std::shared_ptr<const Tokenizer> Tokenizer::FromJson(std::string_view json, std::string_view name,
                                                     std::string_view config_json,
                                                     std::string_view special_map_json) {
  const auto parse = [](std::string_view text, std::string_view file) {
    return text.empty() ? Json::object() : Parse(text, file);
  };
  return std::shared_ptr<const Tokenizer>(new Tokenizer(
      LoadTokenizer(Parse(json, name), name, parse(config_json, "tokenizer_config.json"),
                    parse(special_map_json, "special_tokens_map.json"))));
}

std::shared_ptr<const Tokenizer> Tokenizer::FromFile(const std::filesystem::path& file) {
  return FromJson(io::ReadTextFile(file), file.string());
}

std::shared_ptr<const Tokenizer> Tokenizer::FindIn(const std::filesystem::path& model) {
  if (io::IsGguf(model)) {
    const io::Gguf gguf(model);
    if (!HasTokenizer(gguf)) return nullptr;
    return std::shared_ptr<const Tokenizer>(new Tokenizer(LoadTokenizer(
        TokenizerJsonOfGguf(gguf), model.string(), TokenizerConfigOfGguf(gguf), Json::object())));
  }
  const std::filesystem::path file = model / "tokenizer.json";
  if (!std::filesystem::exists(file)) return nullptr;
  return FromJson(io::ReadTextFile(file), file.string(),
                  ReadFileIfPresent(model / "tokenizer_config.json"),
                  ReadFileIfPresent(model / "special_tokens_map.json"));
}

std::shared_ptr<const Tokenizer> Tokenizer::FromModel(const std::filesystem::path& model) {
  if (auto found = FindIn(model)) return found;
  throw FileError("{}: {}", model.string(),
                  io::IsGguf(model)
                      ? "has no tokenizer"
                      : "no tokenizer.json there; save the tokenizer with Transformers' "
                        "save_pretrained to get one");
}

}  // namespace litecache::tokenizer
