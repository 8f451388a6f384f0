// Finds the chat templates of a checkpoint.
#include <algorithm>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/json_fields.h"

namespace litecache::tokenizer {

namespace {

namespace fs = std::filesystem;

Json ReadJson(const fs::path& path) {
  Json json = io::ReadJsonFile(path);
  if (!json.is_object()) throw FileError("{}: not a JSON object", path.string());
  return json;
}

// A token is a string, or an object with the string as its "content".
void ReadSpecialTokens(const Json& json, std::map<std::string, std::string>* tokens) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const Json* token = FindField(json, name);
    if (token != nullptr && token->is_object()) token = FindField(*token, "content");
    if (token != nullptr && token->is_string()) (*tokens)[name] = token->get<std::string>();
  }
}

// Calls add(name, source) for the template, or all the named templates, of a JSON field.
template <typename Add>
void ReadTemplateField(const Json& field, const std::string& where, Add add) {
  if (field.is_string()) {
    add("default", field.get_ref<const std::string&>());
  } else if (field.is_array()) {
    for (size_t i = 0; i < field.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", where, i);
      add(RequireString(field[i], "name", at), RequireString(field[i], "template", at));
    }
  } else if (field.is_object()) {
    for (const auto& [name, source] : field.items()) add(name, AsString(source, At(where, name)));
  } else {
    throw FileError("{}: {} is not a chat template", where, Shown(field));
  }
}

}  // namespace

ChatTemplateSources FindChatTemplates(const fs::path& model) {
  ChatTemplateSources result;
  auto& sources = result.templates;
  const auto read_field = [&](const Json& json, const fs::path& path) {
    const Json* field = FindField(json, "chat_template");
    if (field == nullptr) return;
    const std::string where = path.string() + ": chat_template";
    ReadTemplateField(*field, where, [&](const std::string& name, const std::string& text) {
      sources[name] = {where, text};
    });
  };
  if (io::IsGguf(model)) {
    const Json json = TokenizerConfigOfGguf(io::Gguf(model));
    ReadSpecialTokens(json, &result.special_tokens);
    read_field(json, model);
  }
  // Later files override earlier ones.
  if (const fs::path path = model / "special_tokens_map.json"; fs::exists(path)) {
    ReadSpecialTokens(ReadJson(path), &result.special_tokens);
  }
  if (const fs::path path = model / "tokenizer_config.json"; fs::exists(path)) {
    const Json json = ReadJson(path);
    ReadSpecialTokens(json, &result.special_tokens);
    read_field(json, path);
  }
  if (const fs::path path = model / "chat_template.json"; fs::exists(path)) {
    read_field(ReadJson(path), path);
  }
  if (const fs::path path = model / "chat_template.jinja"; fs::exists(path)) {
    sources["default"] = {path.string(), io::ReadTextFile(path)};
  }
  if (const fs::path folder = model / "additional_chat_templates"; fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".jinja") continue;
      sources[entry.path().stem().string()] = {entry.path().string(),
                                               io::ReadTextFile(entry.path())};
    }
  }
  return result;
}

std::optional<ChatTemplate> ChatTemplate::FindIn(const fs::path& model) {
  ChatTemplate result;
  ChatTemplateSources sources = FindChatTemplates(model);
  if (sources.templates.empty()) return std::nullopt;
  result.special_tokens_ = std::move(sources.special_tokens);
  for (const auto& [name, source] : sources.templates) {
    try {
      result.Add(name, source.second);
    } catch (const Unsupported& e) {
      throw Unsupported("{}: {}", source.first, e.what());
    } catch (const Error& e) {
      throw FileError("{}: {}", source.first, e.what());
    }
  }
  return result;
}

ChatTemplate ChatTemplate::FromModel(const fs::path& model) {
  if (auto found = FindIn(model)) return *std::move(found);
  throw FileError(
      "{}: there is no chat template (chat_template.jinja, or chat_template in "
      "tokenizer_config.json): give one with --chat-template FILE",
      model.string());
}

}  // namespace litecache::tokenizer
