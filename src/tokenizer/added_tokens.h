// Tokens found in the text before the model runs: special ones and added words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/normalizer.h"
#include "tokenizer/piece.h"

namespace litecache::tokenizer {

struct AddedToken {
  std::string content;
  bool single_word = false;  // matches only if no word character is adjacent
  bool lstrip = false;       // includes white space on its left
  bool rstrip = false;       // includes white space on its right
  bool normalized = true;    // is normalized and searched for in normalized text
  bool special = false;      // left out by Decode(skip_special)

  bool operator==(const AddedToken&) const = default;
};

class AddedTokens {
 public:
  // Adds `token` under `id`, or changes the token with the same content. `normalizer` may be null.
  void Add(const AddedToken& token, int32_t id, const Normalizer* normalizer);

  // Ids by content.
  const std::unordered_map<std::string, int32_t>& ids() const { return ids_; }
  // The token with this id, or nullptr.
  const AddedToken* Find(int32_t id) const;
  // The decoder's input for an added token: its content, normalized if the token is.
  const std::string& DecoderText(int32_t id) const;
  // Whether `text` is the content of a special token.
  bool IsSpecialContent(const std::string& text) const { return special_.contains(text); }

  // Splits tokens out of the pieces that are still text: those searched for in raw text, or those
  // searched for in normalized text. With parse_special false, special tokens are ordinary text.
  void Split(bool normalized, bool parse_special, Pieces* pieces) const;

 private:
  // Byte trie over one set of contents.
  class Trie {
   public:
    void Insert(std::string_view text, int32_t id);
    bool empty() const { return nodes_.size() == 1; }
    // Finds the longest token that begins at text[begin]: its end and id. Returns false if there is
    // none.
    bool Match(std::string_view text, size_t begin, size_t* end, int32_t* id) const;

   private:
    struct Node {
      std::vector<std::pair<unsigned char, uint32_t>> children;  // sorted
      int32_t id = -1;
    };
    std::vector<Node> nodes_ = std::vector<Node>(1);
    bool first_[256] = {};
  };

  struct Entry {
    AddedToken token;
    std::string decoder_text;
  };

  void SplitPiece(const Trie& trie, bool parse_special, const Piece& piece, Pieces* out) const;
  void Rebuild();

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, Entry> entries_;
  std::unordered_set<std::string> special_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace litecache::tokenizer
