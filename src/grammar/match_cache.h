// The places that texts can reach in a grammar, and the tokens allowed there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace litecache::grammar {

// A set of keys for sets that are small and made often: one that is cleared costs nothing.
class SeenKeys {
 public:
  static constexpr size_t kMost = 4096;

  // Whether it is new; the set must have room.
  bool Add(uint64_t key) {
    size_t at = (key * 0x9E3779B97F4A7C15u) >> 51;
    while (slots_[at].made == made_) {
      if (slots_[at].key == key) return false;
      at = (at + 1) % slots_.size();
    }
    slots_[at] = {key, made_};
    ++size_;
    return true;
  }
  size_t size() const { return size_; }
  void Clear() {
    size_ = 0;
    ++made_;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t made = 0;  // the set that the key belongs to
  };
  std::vector<Slot> slots_ = std::vector<Slot>(2 * kMost);
  uint64_t made_ = 1;
  size_t size_ = 0;
};

// A place: everything the automaton can be doing after some text, each with its stack of calls.
// Places are numbered as they are reached; the successor for each byte and the mask are computed
// once. Used by one thread at a time.
class MatchCache {
 public:
  using Place = uint32_t;
  static constexpr Place kNowhere = 0;  // the grammar does not accept the text

  MatchCache(const Automaton& automaton, const Vocabulary& vocabulary);

  Place start() const { return start_; }
  Place Step(Place place, uint8_t byte);
  Place Step(Place place, std::string_view bytes);
  // Whether the whole text may end here.
  bool Complete(Place place) const { return places_[place].complete; }
  // Whether some byte may follow.
  bool Open(Place place) const { return !places_[place].configurations.empty(); }

  // A mask that is being computed, in pieces.
  struct MaskWalk {
    Place place = kNowhere;  // whose mask it is
    Place rest = kNowhere;   // the same without the insides of strings
    std::shared_ptr<TokenMask> mask;
    bool plain = false;       // the tree that is walked: vocabulary.other(), then plain()
    uint32_t node = 0;        // the next one of that tree
    std::vector<Place> path;  // [depth]: the place behind the last node of that depth
  };
  MaskWalk BeginMask(Place place);
  // Does about `work` (TokenConstraint::Prepare) of it; returns whether it is done.
  bool ContinueMask(MaskWalk* walk, int64_t work);
  // Null: it has not been computed.
  std::shared_ptr<const TokenMask> FindMask(Place place) const { return places_[place].mask; }
  // Computes it at once.
  std::shared_ptr<const TokenMask> Mask(Place place);

  // Whether the cache is so large that a new one should replace it.
  bool Full() const;

  // Converts a place of another cache of the same grammar.
  Place Import(const MatchCache& other, Place place);
  MaskWalk Import(const MatchCache& other, MaskWalk walk);

 private:
  // A state, and its stack of calls as a list from the innermost one: nodes_[stack].
  struct Configuration {
    StateId state = 0;
    uint32_t stack = 0;
    auto operator<=>(const Configuration&) const = default;
  };
  struct StackNode {
    StateId next = 0;  // state after the call returns
    uint32_t below = 0;
    uint32_t depth = 0;
  };
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct PlaceData {
    std::vector<Configuration> configurations;  // sorted; only of states with byte edges
    bool complete = false;
    std::unique_ptr<std::array<uint32_t, 256>> next;
    std::shared_ptr<const TokenMask> mask;
  };

  void Reach(Configuration configuration);
  Place Intern();  // from the configurations that Reach() has collected
  uint32_t Push(StateId next, uint32_t below);
  const TokenTree& TreeOf(const MaskWalk& walk) const {
    return walk.plain ? vocabulary_.plain() : vocabulary_.other();
  }

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  std::vector<PlaceData> places_;
  std::unordered_multimap<size_t, Place> by_hash_;
  std::vector<StackNode> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_of_;  // keyed by next and below
  Place start_ = 0;
  size_t masks_ = 0;           // bytes
  size_t configurations_ = 0;  // of all places

  // Scratch of Reach().
  std::vector<Configuration> to_visit_;
  std::vector<Configuration> reached_;
  SeenKeys seen_;
  bool complete_ = false;
  int64_t work_ = 0;  // done so far, for ContinueMask()
};

}  // namespace litecache::grammar
