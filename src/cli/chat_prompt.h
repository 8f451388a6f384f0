// Conversations to prompts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Ids of a rendered prompt. Special tokens that the template wrote are those tokens; where a
// message spells one out, it stays text.
std::vector<int32_t> EncodeRendered(const tokenizer::Tokenizer& tokenizer,
                                    const tokenizer::RenderedPrompt& prompt);

class ChatPrompt {
 public:
  // The template in `template_file`, or the model's own when that is "". Throws FileError and, for
  // a model without a template, Unsupported. `engine` must outlive this.
  ChatPrompt(const Engine& engine, const std::string& template_file);

  // The prompt that asks for the assistant's next message.
  std::vector<int32_t> Encode(const std::vector<ChatTurn>& turns) const;

 private:
  static tokenizer::ChatTemplate Load(const Engine& engine, const std::string& template_file);

  const Engine& engine_;
  tokenizer::ChatTemplate template_;
  tokenizer::ChatTemplateOptions options_;
};

}  // namespace litecache::cli
