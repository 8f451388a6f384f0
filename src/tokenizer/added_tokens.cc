#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

bool EndsWithWord(std::string_view text) {
  size_t offset = PreviousCharacter(text, text.size());
  return IsWordCharacter(NextCodePoint(text, &offset));
}

bool StartsWithWord(std::string_view text) {
  size_t offset = 0;
  return IsWordCharacter(NextCodePoint(text, &offset));
}

// Start of the white space that ends at `end`.
size_t SpaceBefore(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = PreviousCharacter(text, end);
    size_t offset = start;
    if (!IsWhitespace(NextCodePoint(text, &offset))) break;
    end = start;
  }
  return end;
}

// End of the white space that begins at `begin`.
size_t SpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t offset = begin;
    if (!IsWhitespace(NextCodePoint(text, &offset))) break;
    begin = offset;
  }
  return begin;
}

}  // namespace

void AddedTokens::Trie::Insert(std::string_view text, int32_t id) {
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[node].children;
    auto it = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0u});
    if (it == children.end() || it->first != byte) {
      const auto next = static_cast<uint32_t>(nodes_.size());
      children.insert(it, {byte, next});
      nodes_.emplace_back();
      node = next;
    } else {
      node = it->second;
    }
  }
  // If two tokens normalize to the same text, the first one is kept.
  if (nodes_[node].id < 0) nodes_[node].id = id;
  first_[static_cast<unsigned char>(text[0])] = true;
}

bool AddedTokens::Trie::Match(std::string_view text, size_t begin, size_t* end, int32_t* id) const {
  if (!first_[static_cast<unsigned char>(text[begin])]) return false;
  bool found = false;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto it = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0u});
    if (it == children.end() || it->first != byte) break;
    node = it->second;
    if (nodes_[node].id >= 0) {
      found = true;
      *end = i + 1;
      *id = nodes_[node].id;
    }
  }
  return found;
}

void AddedTokens::Add(const AddedToken& token, int32_t id, const Normalizer* normalizer) {
  LC_CHECK(!token.content.empty());
  Entry entry{token, token.content};
  if (token.normalized && normalizer != nullptr) {
    NormalizedText text{token.content};
    normalizer->Apply(&text);
    entry.decoder_text = std::move(text.text);
  }
  ids_[token.content] = id;
  if (token.special) special_.insert(token.content);
  const bool replaces = entries_.contains(id);
  const Entry& stored = entries_.insert_or_assign(id, std::move(entry)).first->second;
  if (replaces) {
    Rebuild();
  } else if (!stored.decoder_text.empty()) {
    (stored.token.normalized ? normalized_ : raw_).Insert(stored.decoder_text, id);
  }
}

void AddedTokens::Rebuild() {
  raw_ = {};
  normalized_ = {};
  std::vector<int32_t> order;
  for (const auto& [id, entry] : entries_) order.push_back(id);
  std::sort(order.begin(), order.end());
  for (const int32_t id : order) {
    const Entry& entry = entries_.at(id);
    if (entry.decoder_text.empty()) continue;
    (entry.token.normalized ? normalized_ : raw_).Insert(entry.decoder_text, id);
  }
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second.token;
}

const std::string& AddedTokens::DecoderText(int32_t id) const {
  return entries_.at(id).decoder_text;
}

void AddedTokens::Split(bool normalized, bool parse_special, Pieces* pieces) const {
  const Trie& trie = normalized ? normalized_ : raw_;
  if (trie.empty()) return;
  Pieces out;
  for (const Piece& piece : *pieces) {
    if (piece.token >= 0) {
      out.push_back(piece);
    } else {
      SplitPiece(trie, parse_special, piece, &out);
    }
  }
  *pieces = std::move(out);
}

void AddedTokens::SplitPiece(const Trie& trie, bool parse_special, const Piece& piece,
                             Pieces* out) const {
  const std::string_view text = piece.text;
  const auto add_text = [&](size_t begin, size_t end) {
    out->push_back({text.substr(begin, end - begin), -1, piece.starts_input && begin == 0});
  };
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    CheckWork();
    size_t match_end = 0;
    int32_t id = -1;
    if (!trie.Match(text, at, &match_end, &id)) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = match_end;
    at = match_end;  // a rejected match still hides matches that begin inside it
    const AddedToken& token = entries_.at(id).token;
    if (!parse_special && special_.contains(token.content)) continue;
    if (token.single_word && ((begin > 0 && EndsWithWord(text.substr(0, begin))) ||
                              (end < text.size() && StartsWithWord(text.substr(end))))) {
      continue;
    }
    if (token.lstrip) begin = std::max(SpaceBefore(text, begin), done);
    if (token.rstrip) end = SpaceBehind(text, end);
    if (done < begin) add_text(done, begin);
    out->push_back({text.substr(std::min(begin, end), end - std::min(begin, end)), id, false});
    done = end;
  }
  if (done < text.size()) add_text(done, text.size());
}

}  // namespace litecache::tokenizer
