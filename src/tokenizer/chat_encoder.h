// Turns conversations into prompts with a checkpoint's chat template and its tokenizer.
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

  // Reads the template in `template_file`, or the model's own in `directory` if that is "". Throws
  // FileError and, for a model without a template, Unsupported.
  static ChatTemplate LoadTemplate(const std::filesystem::path& directory,
                                   const std::string& template_file);

  // Maps the bytes of a rendered prompt to EncodeOptions::max_tokens; may throw. Null: no limit.
  using TokenLimit = std::function<size_t(size_t bytes)>;

  // Ids of ChatTemplate::ApplyMarked(messages, options). If the checkpoint's files name no
  // begin-of-text and end-of-text tokens, `options` receive the tokenizer's.
  std::vector<int32_t> Encode(const nlohmann::ordered_json& messages,
                              ChatTemplateOptions options = {}, const TokenLimit& limit = {}) const;
  // The same with a template sent with a request.
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
