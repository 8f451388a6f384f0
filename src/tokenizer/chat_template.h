// A checkpoint's chat template: renders messages as the text of a prompt.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/marked_string.h"
#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer {

// The text of a prompt, and the byte ranges of it that came from a request (message contents,
// roles, tool schemas, documents, extra variables) rather than from the template. A control token
// spelled out inside an input range must not become that token: a user typed it.
struct RenderedPrompt {
  std::string text;
  std::vector<InputSpan> input;  // sorted, disjoint, not adjacent

  // Whether any byte of [begin, end) is input.
  bool OverlapsInput(size_t begin, size_t end) const;
};

struct ChatTemplateOptions {
  nlohmann::ordered_json tools;      // array of JSON schemas; null: none
  nlohmann::ordered_json documents;  // array of objects; null: none
  // Ends the prompt with the header of the next answer.
  bool add_generation_prompt = true;
  // Leaves the last message open for the model to continue; there is no generation prompt then.
  bool continue_final_message = false;
  // bos_token and the like; extend and override those of the checkpoint.
  std::map<std::string, std::string> special_tokens;
  // An object of further variables, such as {"enable_thinking": false}.
  nlohmann::ordered_json variables;
  // The time that strftime_now uses; the current local time if not set.
  std::optional<std::tm> now;
  jinja::Limits limits;
};

// What a checkpoint's files say of chats: special tokens by their names, "bos_token", and the
// templates by theirs, each with the place where it is.
struct ChatTemplateSources {
  std::map<std::string, std::string> special_tokens;
  std::map<std::string, std::pair<std::string, std::string>> templates;
};
// Throws FileError for malformed files.
ChatTemplateSources FindChatTemplates(const std::filesystem::path& model);

// Equal to Transformers' apply_chat_template(..., tokenize=False). Immutable: any number of threads
// may use it at once. Templates are run by a Jinja interpreter with limits on steps, depth and
// memory; they can access only the given values.
class ChatTemplate {
 public:
  // Parses one template. Throws InvalidArgument for a malformed template and Unsupported for
  // features that the interpreter lacks, both with the line.
  explicit ChatTemplate(std::string_view source);

  // Reads the templates of a checkpoint: chat_template.jinja, chat_template.json, or the field
  // chat_template of tokenizer_config.json (one, or a list of named ones), and
  // additional_chat_templates/*.jinja; special tokens from tokenizer_config.json and
  // special_tokens_map.json; or those of a GGUF file. Throws FileError for malformed files and if
  // there is no template.
  static ChatTemplate FromModel(const std::filesystem::path& model);
  // The same; nullopt if there is no template.
  static std::optional<ChatTemplate> FindIn(const std::filesystem::path& model);

  // `messages` is an array of objects with "role", "content" and whatever else the template reads.
  // Throws InvalidArgument: with the template's own message if it rejects the messages
  // (raise_exception), with the line for run-time errors.
  std::string Apply(const nlohmann::ordered_json& messages,
                    const ChatTemplateOptions& options = {}) const;
  // The same text, with its input ranges.
  RenderedPrompt ApplyMarked(const nlohmann::ordered_json& messages,
                             const ChatTemplateOptions& options = {}) const;

  // The source of the template that would be used; in a checkpoint with several, "tool_use" if
  // there are tools.
  const std::string& Source(bool with_tools = false) const;
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  struct Compiled;
  ChatTemplate() = default;
  void Add(const std::string& name, std::string_view source);
  const Compiled& Choose(bool with_tools) const;

  std::map<std::string, std::shared_ptr<const Compiled>> templates_;  // by name; "default"
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace litecache::tokenizer
