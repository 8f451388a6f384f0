// A checkpoint's own chat template: messages to the text of a prompt.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/marked_string.h"
#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer {

// The text of a prompt, and which byte ranges of it a request brought (message contents, roles,
// tool schemas, documents, extra variables) as opposed to what the template wrote. A control token
// spelled out inside of an input range must not become that token: it is text a user typed.
struct RenderedPrompt {
  std::string text;
  std::vector<InputSpan> input;  // sorted, disjoint, not adjacent

  // True where any byte of [begin, end) is input.
  bool OverlapsInput(size_t begin, size_t end) const;
};

struct ChatTemplateOptions {
  nlohmann::ordered_json tools;      // array of JSON schemas; null: none
  nlohmann::ordered_json documents;  // array of objects; null: none
  // Ends with the header of the answer to come.
  bool add_generation_prompt = true;
  // Leaves the last message open, for the model to go on with it; no generation prompt then.
  bool continue_final_message = false;
  // bos_token and the like; add to, and override, those of the checkpoint.
  std::map<std::string, std::string> special_tokens;
  // An object of further variables, such as {"enable_thinking": false}.
  nlohmann::ordered_json variables;
  // What strftime_now sees; now, in local time, when not given.
  std::optional<std::tm> now;
  jinja::Limits limits;
};

// Equal to Transformers' apply_chat_template(..., tokenize=False). Immutable: any number of threads
// may use it at once. Templates are run by an interpreter of the Jinja language with bounded steps,
// depth and memory; they can read nothing but what they are given.
class ChatTemplate {
 public:
  // One template from its text. Throws InvalidArgument for what is not a template, Unsupported for
  // what the interpreter lacks, each with the line.
  explicit ChatTemplate(std::string_view source);

  // The templates of a checkpoint: chat_template.jinja, chat_template.json, or the field
  // chat_template of tokenizer_config.json (one, or a list of named ones), and
  // additional_chat_templates/*.jinja; special tokens from tokenizer_config.json and
  // special_tokens_map.json. Throws FileError for malformed files and where there is no template.
  static ChatTemplate FromDirectory(const std::filesystem::path& directory);
  // The same; nullopt where there is no template.
  static std::optional<ChatTemplate> FindIn(const std::filesystem::path& directory);

  // `messages` is an array of objects with "role", "content" and what else the template reads.
  // Throws InvalidArgument with the template's own message for messages it refuses
  // (raise_exception), and with the line for errors while it runs.
  std::string Apply(const nlohmann::ordered_json& messages,
                    const ChatTemplateOptions& options = {}) const;
  // The same text, with what is input in it.
  RenderedPrompt ApplyMarked(const nlohmann::ordered_json& messages,
                             const ChatTemplateOptions& options = {}) const;

  // The template that would be used, as text: of a checkpoint with several, "tool_use" where there
  // are tools.
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
