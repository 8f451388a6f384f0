#include "tokenizer/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/jinja/json_values.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer {

using nlohmann::ordered_json;

struct ChatTemplate::Compiled {
  explicit Compiled(std::string_view text) : source(text), parsed(text) {}
  std::string source;
  jinja::Template parsed;
};

namespace {

// Limit in processor time.
constexpr std::chrono::seconds kLongestRun(20);

// Transformers appends this to the last message to find its end in the rendered text.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// Prepares messages as Transformers does: drops null entries, and fills in the alternative names of
// the reasoning field.
ordered_json PrepareMessages(const ordered_json& messages) {
  if (!messages.is_array()) throw InvalidArgument("chat template: messages must be an array");
  ordered_json result = ordered_json::array();
  for (const ordered_json& message : messages) {
    if (!message.is_object()) {
      throw InvalidArgument("chat template: every message must be an object, not {}",
                            message.type_name());
    }
    ordered_json prepared = ordered_json::object();
    const ordered_json* reasoning = nullptr;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      const auto found = message.find(name);
      if (reasoning == nullptr && found != message.end() && !found->is_null()) reasoning = &*found;
    }
    if (reasoning != nullptr) prepared["thinking"] = *reasoning;
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) prepared[key] = value;
    }
    if (reasoning != nullptr) prepared["reasoning_content"] = *reasoning;
    result.push_back(std::move(prepared));
  }
  return result;
}

// Appends the tag to the text of the last message; returns that text.
std::string TagFinalMessage(ordered_json* messages, const std::string& source) {
  if (messages->empty()) throw InvalidArgument("continue_final_message: there is no message");
  ordered_json& message = messages->back();
  const auto content = message.find("content");
  if (content == message.end()) {
    throw InvalidArgument(
        "continue_final_message: the last message has no \"content\" to continue");
  }
  if (source.find("content") == std::string::npos) {
    throw InvalidArgument("continue_final_message: the chat template does not use \"content\"");
  }
  ordered_json* text = &*content;
  if (content->is_array()) {
    text = nullptr;
    for (auto& part : *content) {
      if (part.is_object() && part.contains("text")) text = &part["text"];
    }
  }
  if (text == nullptr || !text->is_string()) {
    throw InvalidArgument("continue_final_message: the last message has no text to continue");
  }
  std::string original = text->get<std::string>();
  *text = original + std::string(kContinueTag);
  return original;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = jinja::SkipSpaces(text, 0);
  return text.substr(begin, jinja::TrimSpaces(text, begin, text.size()) - begin);
}

// Cuts the prompt at the end of the last message.
jinja::MarkedString CutAtTag(const jinja::MarkedString& rendered, const std::string& final_text) {
  const std::string& text = rendered.text();
  const size_t tag = text.rfind(Trimmed(kContinueTag));
  if (tag == std::string::npos || text.find(Trimmed(final_text)) == std::string::npos) {
    throw InvalidArgument(
        "continue_final_message: the last message is not in the prompt as it was given; the chat "
        "template drops or changes parts of it");
  }
  const bool spaces_kept = std::string_view(text).substr(tag, kContinueTag.size()) == kContinueTag;
  const size_t end =
      spaces_kept ? tag : jinja::TrimSpaces(std::string_view(text).substr(0, tag), 0, tag);
  return rendered.Sub(0, end);
}

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

bool RenderedPrompt::OverlapsInput(size_t begin, size_t end) const {
  const auto span = std::upper_bound(input.begin(), input.end(), begin,
                                     [](size_t p, const InputSpan& s) { return p < s.end; });
  return span != input.end() && span->begin < end;
}

ChatTemplate::ChatTemplate(std::string_view source) { Add("default", source); }

void ChatTemplate::Add(const std::string& name, std::string_view source) {
  templates_[name] = std::make_shared<const Compiled>(source);
}

const ChatTemplate::Compiled& ChatTemplate::Choose(bool with_tools) const {
  auto found = templates_.end();
  if (with_tools) found = templates_.find("tool_use");
  if (found == templates_.end()) found = templates_.find("default");
  if (found == templates_.end()) {
    throw InvalidArgument(
        "the checkpoint has named chat templates, but none named \"default\": "
        "choose one with --chat-template FILE");
  }
  return *found->second;
}

const std::string& ChatTemplate::Source(bool with_tools) const { return Choose(with_tools).source; }

std::string ChatTemplate::Apply(const ordered_json& messages,
                                const ChatTemplateOptions& options) const {
  return ApplyMarked(messages, options).text;
}

RenderedPrompt ChatTemplate::ApplyMarked(const ordered_json& messages,
                                         const ChatTemplateOptions& options) const {
  const Compiled& chosen = Choose(!options.tools.is_null());
  // Covers work that the interpreter's own limits miss, such as comparing values with shared parts.
  const WorkLimit limit(kLongestRun, {});
  ordered_json prepared = PrepareMessages(messages);
  std::string final_text;
  if (options.continue_final_message) final_text = TagFinalMessage(&prepared, chosen.source);

  jinja::Runtime rt(options.limits, options.now.has_value() ? *options.now : LocalTime());
  std::map<std::string, jinja::Value> variables;
  for (const auto* tokens : {&special_tokens_, &options.special_tokens}) {
    for (const auto& [name, token] : *tokens) {
      if (!IsValidUtf8(token)) throw InvalidArgument("the token {} is not valid UTF-8", name);
      variables[name] = rt.MakeString(token);
    }
  }
  if (!options.variables.is_null() && !options.variables.is_object()) {
    throw InvalidArgument("chat template: the extra variables must be an object");
  }
  for (const auto& [name, value] : options.variables.items()) {
    variables[name] = jinja::FromJson(rt, value, true);
  }
  variables["messages"] = jinja::FromJson(rt, prepared, true);
  variables["tools"] = jinja::FromJson(rt, options.tools, true);
  variables["documents"] = jinja::FromJson(rt, options.documents, true);
  variables["add_generation_prompt"] =
      jinja::Value::Bool(options.add_generation_prompt && !options.continue_final_message);

  jinja::MarkedString rendered = chosen.parsed.Render(rt, {variables.begin(), variables.end()});
  if (options.continue_final_message) rendered = CutAtTag(rendered, final_text);
  return {rendered.text(), rendered.input()};
}

}  // namespace litecache::tokenizer
