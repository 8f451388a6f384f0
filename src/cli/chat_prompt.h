// Turns conversations into prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "tokenizer/chat_encoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatPrompt {
 public:
  // Reads the template in `template_file`, or the model's own in `directory` if that is "". Throws
  // FileError and, for a model without a template, Unsupported. `tokenizer` must outlive this.
  ChatPrompt(const tokenizer::Tokenizer& tokenizer, const std::filesystem::path& directory,
             const std::string& template_file)
      : encoder_(tokenizer, tokenizer::ChatEncoder::LoadTemplate(directory, template_file)) {}
  ChatPrompt(const Engine& engine, const std::string& template_file)
      : ChatPrompt(engine.tokenizer(), engine.directory(), template_file) {}

  // Whether answers are in harmony, the format of gpt-oss.
  bool harmony() const;
  // The prompt that asks for the assistant's next message.
  std::vector<int32_t> Encode(const std::vector<ChatTurn>& turns) const;

 private:
  tokenizer::ChatEncoder encoder_;
};

}  // namespace litecache::cli
