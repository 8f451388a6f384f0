#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/merge_queue.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ (x >> 29);
}

}  // namespace

void Bpe::PairTable::Reserve(size_t count) {
  slots.assign(std::bit_ceil(std::max<size_t>(16, 2 * count)), {});
  mask = slots.size() - 1;
}

void Bpe::PairTable::Insert(int32_t left, int32_t right, uint32_t rank, int32_t result) {
  const uint64_t key = PairKey(left, right);
  uint64_t i = Mix(key) & mask;
  while (slots[i].key != kEmpty && slots[i].key != key) i = (i + 1) & mask;
  slots[i] = {key, rank, result};
}

const Bpe::PairTable::Slot* Bpe::PairTable::Find(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  for (uint64_t i = Mix(key) & mask; slots[i].key != kEmpty; i = (i + 1) & mask) {
    if (slots[i].key == key) return &slots[i];
  }
  return nullptr;
}

Bpe::Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options)
    : options_(std::move(options)), vocabulary_(std::move(vocabulary)) {
  short_characters_.assign(0x800, -1);
  for (const auto& [token, id] : vocabulary_) {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = &token;
    longest_token_ = std::max(longest_token_, token.size());
    if (token.empty()) continue;
    const auto lead = static_cast<unsigned char>(token[0]);
    if (lead < 0xE0 && SequenceLength(lead) == token.size()) {
      size_t offset = 0;
      short_characters_[NextCodePoint(token, &offset)] = id;
    }
  }
  if (options_.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      fallback_.push_back(TokenToId(fmt::format("<0x{:02X}>", byte)));
    }
  }
  if (options_.has_unk_token) unk_id_ = TokenToId(options_.unk_token);
  merge_count_ = merges.size();
  merges_.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    merges_.Insert(merge.left, merge.right, static_cast<uint32_t>(rank), merge.result);
  }
  FindJoints(merges);
}

// A merge of (left, right) joins the last initial symbol of `left` with the first one of `right`.
// If every token has one first and one last initial symbol (as in all real vocabularies), those
// pairs are the only ones that can be joined, and a word can be cut between all others.
void Bpe::FindJoints(const std::vector<Merge>& merges) {
  if (!options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty()) return;
  constexpr int32_t kUnknown = -1;
  constexpr int kMaxPasses = 16;
  std::vector<int32_t> first(tokens_.size(), kUnknown);
  std::vector<int32_t> last(tokens_.size(), kUnknown);
  const auto set_initial = [&](int32_t id) {
    if (id >= 0) first[static_cast<size_t>(id)] = last[static_cast<size_t>(id)] = id;
  };
  for (const auto& [token, id] : vocabulary_) {
    if (!token.empty() && SequenceLength(static_cast<unsigned char>(token[0])) == token.size()) {
      set_initial(id);
    }
  }
  for (const int32_t id : fallback_) set_initial(id);
  set_initial(unk_id_);

  // Merges usually come after those that produce their parts. A few vocabularies have them out of
  // order, hence the passes; a part that no pass reaches cannot occur, nor can its merge.
  bool changed = true;
  for (int pass = 0; changed; ++pass) {
    if (pass == kMaxPasses) return;
    changed = false;
    for (const Merge& merge : merges) {
      const int32_t begin = first[static_cast<size_t>(merge.left)];
      const int32_t end = last[static_cast<size_t>(merge.right)];
      if (begin == kUnknown || end == kUnknown) continue;
      int32_t& result_first = first[static_cast<size_t>(merge.result)];
      int32_t& result_last = last[static_cast<size_t>(merge.result)];
      if (result_first == begin && result_last == end) continue;
      if (result_first != kUnknown) return;
      result_first = begin;
      result_last = end;
      changed = true;
    }
  }
  joints_.Reserve(merges.size());
  for (const Merge& merge : merges) {
    const int32_t left_end = last[static_cast<size_t>(merge.left)];
    const int32_t right_begin = first[static_cast<size_t>(merge.right)];
    if (left_end != kUnknown && right_begin != kUnknown) {
      joints_.Insert(left_end, right_begin, 0, 0);
    }
  }
  joints_known_ = true;
}

int32_t Bpe::TokenToId(std::string_view token) const {
  const auto it = vocabulary_.find(token);
  return it == vocabulary_.end() ? -1 : it->second;
}

const std::string* Bpe::IdToToken(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  return tokens_[static_cast<size_t>(id)];
}

void Bpe::Symbols(std::string_view word, std::vector<int32_t>* symbols) const {
  const bool plain =
      options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  bool unk_pending = false;
  std::string affixed;
  for (size_t offset = 0; offset < word.size();) {
    CheckWork();
    const size_t start = offset;
    const char32_t c = NextCodePoint(word, &offset);
    std::string_view character = word.substr(start, offset - start);
    int32_t id = -1;
    if (plain && c < 0x800) {
      id = short_characters_[c];
    } else {
      if (!plain) {
        affixed.clear();
        if (start > 0) affixed += options_.continuing_subword_prefix;
        affixed += character;
        if (offset == word.size()) affixed += options_.end_of_word_suffix;
        character = affixed;
      }
      id = TokenToId(character);
    }
    if (id >= 0) {
      if (unk_pending) symbols->push_back(unk_id_);
      unk_pending = false;
      symbols->push_back(id);
      continue;
    }
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char b) {
          return fallback_[static_cast<unsigned char>(b)] >= 0;
        })) {
      for (const char b : character) {
        symbols->push_back(fallback_[static_cast<unsigned char>(b)]);
      }
      continue;
    }
    if (!options_.has_unk_token) continue;
    if (unk_id_ < 0) {
      throw InvalidArgument(
          "the text has a character without a token (\"{}\"), and the tokenizer's unk_token \"{}\" "
          "is no token either",
          character, options_.unk_token);
    }
    if (unk_pending && !options_.fuse_unk) symbols->push_back(unk_id_);
    unk_pending = true;
  }
  if (unk_pending) symbols->push_back(unk_id_);
}

struct Bpe::Encoder::State {
  const Bpe& bpe;

  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;  // kGone in `previous` marks a symbol that was merged away
  };
  static constexpr int32_t kGone = -2;

  std::vector<int32_t> initial;
  std::vector<Symbol> symbols;
  // Up to this length one heap is the faster queue (measured on runs of one letter).
  static constexpr size_t kMaxHeapSegment = 512;
  MergeHeap heap;
  std::optional<MergeRanks> ranks;

  // Cache of segments: initial symbols and tokens are in `store`, indexed by an open-addressing
  // table. The words of a text repeat; on source code nine of ten segments are found.
  struct Remembered {
    uint64_t hash = 0;
    uint32_t offset = 0;
    uint16_t input_size = 0;  // 0: free
    uint16_t output_size = 0;
  };
  static constexpr size_t kMaxRemembered = 32;  // longer segments rarely repeat
  static constexpr size_t kMaxStore = 4 << 20;  // ids; bounds the memory of one encoder
  std::vector<Remembered> table = std::vector<Remembered>(1 << 8);
  size_t table_used = 0;
  std::vector<int32_t> store;

  explicit State(const Bpe& model) : bpe(model) {}

  static uint64_t Hash(const int32_t* ids, size_t count) {
    uint64_t hash = count;
    for (size_t i = 0; i < count; ++i) {
      hash = Mix(hash ^ static_cast<uint32_t>(ids[i]));
    }
    return hash;
  }

  Remembered* Locate(uint64_t hash, const int32_t* ids, size_t count) {
    size_t i = hash & (table.size() - 1);
    while (table[i].input_size != 0) {
      const Remembered& entry = table[i];
      if (entry.hash == hash && entry.input_size == count &&
          std::equal(ids, ids + count, store.begin() + entry.offset)) {
        break;
      }
      i = (i + 1) & (table.size() - 1);
    }
    return &table[i];
  }

  void Grow() {
    std::vector<Remembered> old(2 * table.size());
    old.swap(table);
    for (const Remembered& entry : old) {
      if (entry.input_size == 0) continue;
      size_t i = entry.hash & (table.size() - 1);
      while (table[i].input_size != 0) i = (i + 1) & (table.size() - 1);
      table[i] = entry;
    }
  }

  void Segment(const int32_t* ids, size_t count, std::vector<int32_t>* out) {
    if (count == 1) {
      out->push_back(*ids);
      return;
    }
    if (count > kMaxRemembered) return Merge(ids, count, out);
    const uint64_t hash = Hash(ids, count);
    Remembered* entry = Locate(hash, ids, count);
    if (entry->input_size != 0) {
      const auto begin = store.begin() + entry->offset + entry->input_size;
      out->insert(out->end(), begin, begin + entry->output_size);
      return;
    }
    const size_t before = out->size();
    Merge(ids, count, out);
    if (store.size() > kMaxStore) return;
    if (2 * (table_used + 1) > table.size()) {
      Grow();
      entry = Locate(hash, ids, count);
    }
    ++table_used;
    *entry = {hash, static_cast<uint32_t>(store.size()), static_cast<uint16_t>(count),
              static_cast<uint16_t>(out->size() - before)};
    store.insert(store.end(), ids, ids + count);
    store.insert(store.end(), out->begin() + static_cast<ptrdiff_t>(before), out->end());
  }

  // Merges the lowest-ranked, leftmost pair until no pair can be merged.
  void Merge(const int32_t* ids, size_t count, std::vector<int32_t>* out) {
    symbols.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(i);
      symbols.push_back({ids[i], position - 1, i + 1 < count ? position + 1 : -1});
    }
    if (count <= kMaxHeapSegment) {
      MergeAll(&heap);
    } else {
      if (!ranks) ranks.emplace(bpe.merge_count_);
      MergeAll(&*ranks);
    }
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      out->push_back(symbols[static_cast<size_t>(i)].id);
    }
  }

  template <typename Queue>
  void MergeAll(Queue* queue) {
    const auto push = [&](int32_t position, int32_t left, int32_t right) {
      if (const PairTable::Slot* merge = bpe.merges_.Find(left, right)) {
        queue->Push({merge->rank, position, merge->result});
      }
    };
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      push(static_cast<int32_t>(i), symbols[i].id, symbols[i + 1].id);
    }
    MergeCandidate top;
    while (queue->Pop(&top)) {
      CheckWork();
      Symbol& left = symbols[static_cast<size_t>(top.position)];
      if (left.previous == kGone || left.next < 0) continue;
      Symbol& right = symbols[static_cast<size_t>(left.next)];
      // The pair may have changed since it was queued.
      const PairTable::Slot* merge = bpe.merges_.Find(left.id, right.id);
      if (merge == nullptr || merge->result != top.result) continue;
      left.id = top.result;
      left.next = right.next;
      right.previous = kGone;
      if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
      if (left.previous >= 0) {
        push(left.previous, symbols[static_cast<size_t>(left.previous)].id, left.id);
      }
      if (left.next >= 0) push(top.position, left.id, symbols[static_cast<size_t>(left.next)].id);
    }
  }
};

Bpe::Encoder::Encoder(const Bpe& bpe) : state_(std::make_unique<State>(bpe)) {}
Bpe::Encoder::~Encoder() = default;

void Bpe::Encoder::Encode(std::string_view word, std::vector<int32_t>* ids,
                          const IsControl& is_control) {
  State& state = *state_;
  const Bpe& bpe = state.bpe;
  if (bpe.options_.ignore_merges && !(is_control && is_control(word))) {
    const int32_t id = bpe.TokenToId(word);
    if (id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  std::vector<int32_t>& initial = state.initial;
  initial.clear();
  bpe.Symbols(word, &initial);
  size_t begin = 0;
  for (size_t i = 1; i <= initial.size(); ++i) {
    if (i < initial.size() &&
        (!bpe.joints_known_ || bpe.joints_.Find(initial[i - 1], initial[i]) != nullptr)) {
      continue;
    }
    state.Segment(initial.data() + begin, i - begin, ids);
    begin = i;
  }
}

}  // namespace litecache::tokenizer
