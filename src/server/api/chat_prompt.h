// The fields of a request that make up its conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/fields.h"
#include "server/api/json.h"
#include "server/api/model.h"
#include "tokenizer/chat_template.h"

namespace litecache::server {

struct ChatPromptFields {
  Json messages;
  tokenizer::ChatTemplateOptions options;
  std::optional<tokenizer::ChatTemplate> chat_template;  // sent with the request
  int64_t most_tokens = 0;                               // keeps only the last ones; 0: all
};

// Reads messages, add_generation_prompt, continue_final_message, chat_template,
// chat_template_kwargs, documents, enable_thinking and reasoning_effort. Throws ApiError.
ChatPromptFields ReadChatPrompt(Fields& fields, const ServedModel& model);

// Sets reasoning_effort, which only a template can act on. If the template does not support it, the
// field `field` is ignored (IgnoreField()).
void SetReasoningEffort(const std::string& effort, const std::string& field,
                        const ServedModel& model, ChatPromptFields* prompt);

// The text that the template makes of it. Throws an ApiError that names `field`, also for errors
// raised by the template and for a model without a template.
tokenizer::RenderedPrompt RenderChatPrompt(const ChatPromptFields& prompt, const ServedModel& model,
                                           const char* field = "messages");
// The same as token ids. Throws an ApiError also if the prompt is too long.
std::vector<int32_t> EncodeChatPrompt(const ChatPromptFields& prompt, const ServedModel& model,
                                      const char* field = "messages");

}  // namespace litecache::server
