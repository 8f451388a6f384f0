#include "server/api/special_tags.h"

#include <algorithm>

#include "grammar/vocabulary.h"

namespace litecache::server {
namespace {

// Calls found(begin, size, id) for each special token.
template <typename Found>
void FindSpecialTags(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                     const Found& found) {
  for (size_t at = 0; (at = text.find_first_of("<[", at)) != std::string_view::npos; ++at) {
    const size_t end = text.find(text[at] == '<' ? '>' : ']', at);
    if (end == std::string_view::npos) continue;
    const std::string_view tag = text.substr(at, end + 1 - at);
    const auto id = tokenizer.TokenToId(tag);
    if (!id || !tokenizer.IsSpecial(*id)) continue;
    found(at, tag.size(), *id);
    at = end;
  }
}

}  // namespace

void KeepSpecialTags(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                     Request* request) {
  std::vector<int32_t>& kept = request->kept_special_tokens;
  FindSpecialTags(text, tokenizer, [&](size_t, size_t, int32_t id) {
    if (std::find(kept.begin(), kept.end(), id) == kept.end()) kept.push_back(id);
  });
}

std::string WithControlTokens(std::string_view text, const tokenizer::Tokenizer& tokenizer) {
  std::string spelled;
  size_t done = 0;
  FindSpecialTags(text, tokenizer, [&](size_t begin, size_t size, int32_t) {
    spelled += text.substr(done, begin - done);
    spelled += grammar::kControl;
    spelled += text.substr(begin, size);
    done = begin + size;
  });
  return spelled + std::string(text.substr(done));
}

}  // namespace litecache::server
