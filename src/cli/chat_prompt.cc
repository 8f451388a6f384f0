#include "cli/chat_prompt.h"

namespace litecache::cli {

std::vector<int32_t> ChatPrompt::Encode(const std::vector<ChatTurn>& turns) const {
  auto messages = nlohmann::ordered_json::array();
  for (const auto& turn : turns) {
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  }
  return encoder_.Encode(messages);
}

}  // namespace litecache::cli
