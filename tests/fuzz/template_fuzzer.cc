// Arbitrary bytes as a chat template: must end with a prompt or an error, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using litecache::tokenizer::ChatTemplate;
  using nlohmann::ordered_json;
  static const ordered_json messages = ordered_json::parse(R"([
      {"role": "system", "content": " Be brief. "},
      {"role": "user", "content": "Hello <|x|> \u00e9"},
      {"role": "assistant", "content": [{"type": "text", "text": "a"}],
       "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [true]}}}]}])");
  litecache::tokenizer::ChatTemplateOptions options;
  options.tools = ordered_json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  options.special_tokens["bos_token"] = "<s>";
  options.now = std::tm{};
  options.limits.steps = 200'000;
  options.limits.string_bytes = 1 << 18;
  options.limits.total_bytes = 16 << 20;
  options.limits.list_items = 1 << 14;
  options.limits.eval_depth = 400;
  try {
    const ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size));
    chat.ApplyMarked(messages, options);
  } catch (const litecache::Error&) {
  }
  return 0;
}
