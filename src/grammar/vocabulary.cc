#include "grammar/vocabulary.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

TokenTree MakeTree(const std::vector<std::string>& bytes, std::vector<int32_t> tokens) {
  const auto text = [&](int32_t token) -> std::string_view {
    return bytes[static_cast<size_t>(token)];
  };
  std::sort(tokens.begin(), tokens.end(),
            [&](int32_t a, int32_t b) { return text(a) != text(b) ? text(a) < text(b) : a < b; });
  TokenTree tree;
  std::vector<uint32_t> path;  // nodes of the current prefix
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      tree.nodes[path.back()].end = static_cast<uint32_t>(tree.nodes.size());
    }
  };
  for (const int32_t token : tokens) {
    const std::string_view now = text(token);
    const auto same = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), now.begin(), now.end()).first - before.begin());
    if (now != before || path.empty()) {
      close(same);
      for (size_t i = same; i < now.size(); ++i) {
        path.push_back(static_cast<uint32_t>(tree.nodes.size()));
        const auto at = static_cast<uint32_t>(tree.tokens.size());
        tree.nodes.push_back(
            {static_cast<uint8_t>(now[i]), static_cast<uint32_t>(i + 1), 0, at, at});
      }
    }
    tree.tokens.push_back(token);
    tree.nodes[path.back()].tokens_end = static_cast<uint32_t>(tree.tokens.size());
    tree.depth = std::max(tree.depth, static_cast<uint32_t>(now.size()));
    before = now;
  }
  close(0);
  return tree;
}

// Number of characters in a text that a JSON string contains unescaped; 0 for other texts.
size_t PlainLength(std::string_view text) {
  if (!tokenizer::IsValidUtf8(text)) return 0;
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const char32_t c = tokenizer::NextCodePoint(text, &at);
    if (c < 0x20 || c == '"' || c == '\\') return 0;
  }
  return count;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> bytes) : bytes_(std::move(bytes)) {
  const size_t words = (bytes_.size() + 31) / 32;
  plain_by_length_.resize(1, TokenMask(words));
  std::vector<int32_t> plain, other;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i].empty()) continue;
    const size_t length = PlainLength(bytes_[i]);
    (length > 0 ? plain : other).push_back(static_cast<int32_t>(i));
    if (length == 0) continue;
    // Longer tokens count as this long: a handful of tokens with runs of blanks.
    constexpr size_t kLongest = 64;
    if (length > plain_by_length_.size()) {
      plain_by_length_.resize(std::min(length, kLongest), TokenMask(words));
    }
    if (length <= kLongest) plain_by_length_[length - 1][i / 32] |= 1u << (i % 32);
  }
  for (size_t i = 1; i < plain_by_length_.size(); ++i) {
    for (size_t w = 0; w < words; ++w) plain_by_length_[i][w] |= plain_by_length_[i - 1][w];
  }
  plain_ = MakeTree(bytes_, std::move(plain));
  other_ = MakeTree(bytes_, std::move(other));
}

std::shared_ptr<const Vocabulary> Vocabulary::Of(const tokenizer::Tokenizer& tokenizer) {
  std::vector<std::string> bytes = tokenizer.AllTokenBytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    // The token of that byte alone.
    if (bytes[i].find(kControl) != std::string::npos) bytes[i].clear();
    const auto id = static_cast<int32_t>(i);
    if (tokenizer.IsSpecial(id)) bytes[i] = kControl + tokenizer.IdToToken(id).value_or("");
  }
  return std::make_shared<Vocabulary>(std::move(bytes));
}

}  // namespace litecache::grammar
