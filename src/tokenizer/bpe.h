// Byte-pair encoding, on characters of the byte-level alphabet (GPT-2, Llama 3, Qwen) or on the
// text's characters with bytes as a fallback (SentencePiece style: Llama 2, Mistral).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace litecache::tokenizer {

struct BpeOptions {
  std::string unk_token;  // for characters without a token; if unset, they are dropped
  bool has_unk_token = false;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;       // one unk_token for a run of unknown characters
  bool byte_fallback = false;  // unknown characters become "<0xNN>" tokens
  bool ignore_merges = false;  // a word that is itself a token becomes that token
};

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// Immutable, used by any number of threads.
class Bpe {
 public:
  // `merges` in order of rank, as the ids of the two parts and of the result.
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options);

  // Encodes the words of one text. Words are cut where no merge can ever join two characters, so
  // that even a megabyte without spaces is split into short segments, which are cached.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe);
    ~Encoder();
    Encoder(const Encoder&) = delete;
    Encoder& operator=(const Encoder&) = delete;
    // Appends the tokens of one word (valid UTF-8). O(n log n). Throws InvalidArgument if an
    // unknown character requires an unk_token that is not in the vocabulary.
    // `is_control`: words that must not become a single token (ignore_merges); null: no such words.
    using IsControl = std::function<bool(std::string_view word)>;
    void Encode(std::string_view word, std::vector<int32_t>* ids, const IsControl& is_control = {});

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // -1 if `token` is not in the vocabulary.
  int32_t TokenToId(std::string_view token) const;
  // nullptr if `id` is not in the vocabulary.
  const std::string* IdToToken(int32_t id) const;
  size_t size() const { return vocabulary_.size(); }
  size_t longest_token() const { return longest_token_; }  // bytes
  int32_t max_id() const { return static_cast<int32_t>(tokens_.size()) - 1; }

 private:
  // Open-addressing hash table from a pair of ids to a rank and the id of the result.
  struct PairTable {
    struct Slot {
      uint64_t key = kEmpty;
      uint32_t rank = 0;
      int32_t result = 0;
    };
    static constexpr uint64_t kEmpty = ~uint64_t{0};
    std::vector<Slot> slots;
    uint64_t mask = 0;

    void Reserve(size_t count);
    // Overwrites an earlier entry of the same pair.
    void Insert(int32_t left, int32_t right, uint32_t rank, int32_t result);
    const Slot* Find(int32_t left, int32_t right) const;
  };

  void FindJoints(const std::vector<Merge>& merges);
  // The initial symbols of a word, one per character (or several for fallback bytes).
  void Symbols(std::string_view word, std::vector<int32_t>* symbols) const;

  BpeOptions options_;
  Vocabulary vocabulary_;
  std::vector<const std::string*> tokens_;  // by id, nullptr for gaps; points into vocabulary_
  PairTable merges_;
  size_t longest_token_ = 0;
  size_t merge_count_ = 0;  // ranks are smaller than this
  // Pairs of initial symbols that some merge can join. If joints_known_ is false, any pair may be
  // joined.
  PairTable joints_;
  bool joints_known_ = false;
  std::vector<int32_t> short_characters_;  // id of each character below U+0800, or -1
  std::vector<int32_t> fallback_;          // ids of "<0x00>".."<0xFF>", or -1
  int32_t unk_id_ = -1;
};

// Loads the model of a tokenizer.json, which must be of type BPE. `where` is its position in the
// file. Throws Unsupported for other types and for dropout; FileError for malformed fields, for
// merges whose parts or result are not tokens, and for duplicate ids.
std::unique_ptr<Bpe> LoadBpe(const nlohmann::json& json, std::string_view where);

}  // namespace litecache::tokenizer
