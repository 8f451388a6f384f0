#include "tokenizer/chat_encoder.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "io/file.h"

namespace litecache::tokenizer {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template)
    : encoder_(tokenizer),
      template_(std::move(chat_template)),
      special_tokens_(template_.special_tokens()) {
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    if (!id || special_tokens_.contains(name)) return;
    if (auto text = tokenizer.IdToToken(*id)) special_tokens_[name] = *text;
  };
  add("bos_token", tokenizer.bos_id());
  add("eos_token", tokenizer.eos_id());
}

ChatTemplate ChatEncoder::LoadTemplate(const std::filesystem::path& directory,
                                       const std::string& template_file) {
  if (!template_file.empty()) {
    try {
      return ChatTemplate(io::ReadTextFile(template_file));
    } catch (const InvalidArgument& error) {
      throw FileError("{}: {}", template_file, error.what());
    }
  }
  auto found = ChatTemplate::FindIn(directory);
  if (!found) {
    throw Unsupported("{}: this model has no chat template: give one with --chat-template FILE",
                      directory.string());
  }
  return std::move(*found);
}

RenderedPrompt ChatEncoder::Render(const ChatTemplate& chat_template,
                                   const nlohmann::ordered_json& messages,
                                   ChatTemplateOptions options) const {
  options.special_tokens.insert(special_tokens_.begin(), special_tokens_.end());
  return chat_template.ApplyMarked(messages, options);
}

}  // namespace litecache::tokenizer
