// Turns conversations into prompts with a checkpoint's chat template and its tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/prompt_encoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

// Immutable: any number of threads may use it at once.
class ChatEncoder {
 public:
  // `tokenizer` must outlive this.
  ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template);

  // Reads the template in `template_file`, or the model's own in `directory` if that is "". Throws
  // FileError and, for a model without a template, Unsupported.
  static ChatTemplate LoadTemplate(const std::filesystem::path& directory,
                                   const std::string& template_file);

  // ChatTemplate::ApplyMarked(messages, options) of the model's template or of one sent with a
  // request. If the checkpoint's files name no begin-of-text and end-of-text tokens, `options`
  // receive the tokenizer's.
  RenderedPrompt Render(const ChatTemplate& chat_template, const nlohmann::ordered_json& messages,
                        ChatTemplateOptions options = {}) const;
  // The ids of a rendered prompt; `max_tokens` as in EncodeOptions.
  std::vector<int32_t> EncodeRendered(const RenderedPrompt& prompt,
                                      size_t max_tokens = SIZE_MAX) const {
    return encoder_.Encode(prompt, max_tokens);
  }
  // Both, with the model's template.
  std::vector<int32_t> Encode(const nlohmann::ordered_json& messages,
                              ChatTemplateOptions options = {}) const {
    return EncodeRendered(Render(template_, messages, std::move(options)));
  }

  const ChatTemplate& chat_template() const { return template_; }

 private:
  PromptEncoder encoder_;
  ChatTemplate template_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace litecache::tokenizer
