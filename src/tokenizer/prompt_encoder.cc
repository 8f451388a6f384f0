#include "tokenizer/prompt_encoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/work_limit.h"

namespace litecache::tokenizer {

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    auto text = tokenizer.IdToToken(id);
    if (!text || text->empty()) continue;
    starts_[static_cast<unsigned char>((*text)[0])] = true;
    special_.push_back({std::move(*text), id});
  }
  // Longest first, so that the longest match is found at every position.
  std::stable_sort(special_.begin(), special_.end(),
                   [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
}

// Special tokens spelled out in `text`, leftmost and longest first, not overlapping.
std::vector<PromptEncoder::Occurrence> PromptEncoder::FindSpecialTokens(
    const std::string& text) const {
  std::vector<Occurrence> found;
  for (size_t at = 0; at < text.size();) {
    CheckWork();
    const auto match =
        !starts_[static_cast<unsigned char>(text[at])]
            ? special_.end()
            : std::find_if(special_.begin(), special_.end(), [&](const SpecialToken& token) {
                return text.compare(at, token.text.size(), token.text) == 0;
              });
    if (match == special_.end()) {
      ++at;
    } else {
      found.push_back({at, at + match->text.size(), match->id});
      at += match->text.size();
    }
  }
  return found;
}

std::vector<int32_t> PromptEncoder::Encode(const RenderedPrompt& prompt, size_t max_tokens) const {
  const auto found = FindSpecialTokens(prompt.text);
  // Whether the request wrote the token or one of its ends. Request text between two ends written
  // by the template is intended by the template: many write "<|" + role + "|>".
  const auto is_input = [&](const Occurrence& token) {
    return prompt.OverlapsInput(token.begin, token.begin + 1) ||
           prompt.OverlapsInput(token.end - 1, token.end);
  };
  if (std::none_of(found.begin(), found.end(), is_input)) {
    return tokenizer_.Encode(prompt.text, {.add_special_tokens = false, .max_tokens = max_tokens});
  }
  // Rare: text between the template's own special tokens is encoded as plain text.
  const EncodeOptions as_text{
      .add_special_tokens = false, .parse_special = false, .max_tokens = max_tokens};
  std::vector<int32_t> ids;
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    const auto part =
        tokenizer_.Encode(std::string_view(prompt.text).substr(done, end - done), as_text);
    ids.insert(ids.end(), part.begin(), part.end());
  };
  for (const auto& token : found) {
    if (is_input(token)) continue;
    if (token.begin > done) add_text(token.begin);
    ids.push_back(token.id);
    done = token.end;
  }
  if (done < prompt.text.size()) add_text(prompt.text.size());
  return ids;
}

}  // namespace litecache::tokenizer
