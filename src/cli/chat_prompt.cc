#include "cli/chat_prompt.h"

#include "server/api/harmony.h"

namespace litecache::cli {

bool ChatPrompt::harmony() const { return server::IsHarmony(encoder_.chat_template().Source()); }

std::vector<int32_t> ChatPrompt::Encode(const std::vector<ChatTurn>& turns) const {
  auto messages = nlohmann::ordered_json::array();
  for (const auto& turn : turns) {
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  }
  return encoder_.Encode(messages);
}

}  // namespace litecache::cli
