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
  std::shared_ptr<const TokenMask> Mask(Place place);

  // Whether the cache is so large that a new one should replace it.
  bool Full() const;

  // Converts a place of another cache of the same grammar.
  Place Import(const MatchCache& other, Place place);

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
  void Walk(const TokenTree& tree, Place place, TokenMask* mask);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  std::vector<PlaceData> places_;
  std::unordered_multimap<size_t, Place> by_hash_;
  std::vector<StackNode> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_of_;  // keyed by next and below
  Place start_ = 0;
  size_t masks_ = 0;

  // Scratch of Reach().
  std::vector<Configuration> work_;
  std::vector<Configuration> reached_;
  std::unordered_map<uint64_t, bool> seen_;
  bool complete_ = false;
  std::vector<Place> path_;  // scratch of Walk()
};

}  // namespace litecache::grammar
