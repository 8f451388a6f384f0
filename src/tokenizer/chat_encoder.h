// Conversations to prompts: a checkpoint's chat template and its tokenizer together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
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

  // The template in `template_file`, or the one in `directory`, the model's, when that is "".
  // Throws FileError and, for a model without a template, Unsupported.
  static ChatTemplate LoadTemplate(const std::filesystem::path& directory,
                                   const std::string& template_file);

  // From the bytes of a rendered prompt to EncodeOptions::max_tokens; may throw. None: no limit.
  using TokenLimit = std::function<size_t(size_t bytes)>;

  // Ids of ChatTemplate::ApplyMarked(messages, options); `options` get the tokenizer's beginning
  // and end of text where the checkpoint's files name none.
  std::vector<int32_t> Encode(const nlohmann::ordered_json& messages,
                              ChatTemplateOptions options = {}, const TokenLimit& limit = {}) const;
  // The same with a template that a request brought along.
  std::vector<int32_t> EncodeWith(const ChatTemplate& chat_template,
                                  const nlohmann::ordered_json& messages,
                                  ChatTemplateOptions options = {},
                                  const TokenLimit& limit = {}) const;

  const ChatTemplate& chat_template() const { return template_; }

 private:
  PromptEncoder encoder_;
  ChatTemplate template_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace litecache::tokenizer
