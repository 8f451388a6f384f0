#include "server/api/chat_prompt.h"

#include <utility>

#include "base/error.h"
#include "server/api/answer.h"
#include "server/api/generation_fields.h"
#include "server/api/messages.h"

namespace litecache::server {

ChatPromptFields ReadChatPrompt(Fields& fields, const ServedModel& model) {
  ChatPromptFields prompt;
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadRequest("messages", "'messages' is missing");
  prompt.messages = ReadMessages(*messages);

  auto& options = prompt.options;
  options.continue_final_message = fields.Bool("continue_final_message").value_or(false);
  const auto add = fields.Bool("add_generation_prompt");
  if (options.continue_final_message && add.value_or(false)) {
    fields.Fail("continue_final_message", "it cannot be combined with 'add_generation_prompt'");
  }
  options.add_generation_prompt = add.value_or(!options.continue_final_message);
  if (const Json* documents = fields.Array("documents")) options.documents = *documents;
  options.variables = Json::object();
  if (const Json* variables = fields.Object("chat_template_kwargs")) {
    options.variables = *variables;
  }
  if (const auto think = fields.Bool("enable_thinking")) {
    options.variables["enable_thinking"] = *think;
  }
  if (const auto source = fields.String("chat_template")) {
    if (!model.limits.trust_chat_template) {
      fields.Fail("chat_template",
                  "this server does not accept templates from requests (start it with "
                  "--trust-chat-template)");
    }
    try {
      prompt.chat_template.emplace(*source);
    } catch (const Error& error) {
      throw BadRequest("chat_template", "'chat_template': {}", error.what());
    }
  }
  if (const auto effort = fields.String("reasoning_effort")) {
    SetReasoningEffort(*effort, fields.Path("reasoning_effort"), model, &prompt);
  }
  return prompt;
}

void SetReasoningEffort(const std::string& effort, const std::string& field,
                        const ServedModel& model, ChatPromptFields* prompt) {
  const bool known = model.chat && model.chat->chat_template().Source().find("reasoning_effort") !=
                                       std::string::npos;
  if (!known && !prompt->chat_template) {
    return IgnoreField(field, "the model's chat template does not support it");
  }
  prompt->options.variables["reasoning_effort"] = effort;
}

tokenizer::RenderedPrompt RenderChatPrompt(const ChatPromptFields& prompt, const ServedModel& model,
                                           const char* field) {
  if (!model.chat) {
    throw NotSupported(field,
                       "the model {} has no chat template: use /v1/completions, or start the "
                       "server with --chat-template FILE",
                       model.name());
  }
  const auto& chat_template =
      prompt.chat_template ? *prompt.chat_template : model.chat->chat_template();
  try {
    return model.chat->Render(chat_template, prompt.messages, prompt.options);
  } catch (const InvalidArgument& error) {
    throw BadRequest(field, "{}", error.what());
  } catch (const Unsupported& error) {
    throw BadRequest(field, "{}", error.what());
  }
}

std::vector<int32_t> EncodeChatPrompt(const ChatPromptFields& prompt, const ServedModel& model,
                                      const char* field) {
  const tokenizer::RenderedPrompt rendered = RenderChatPrompt(prompt, model, field);
  auto ids = EncodePrompt(rendered.text.size(), model,
                          [&](size_t most) { return model.chat->EncodeRendered(rendered, most); });
  Truncate(prompt.most_tokens, &ids);
  CheckPromptSize(ids.size(), model);
  return ids;
}

}  // namespace litecache::server
