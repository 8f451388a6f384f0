// Where in a grammar texts can be, and which tokens may follow there.
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

// A place: everything the automaton can be doing after some text, each with the calls it is in.
// Places are numbered as they are met; what a byte makes of one, and its mask, are worked out once.
// Used by one thread at a time.
class MatchCache {
 public:
  using Place = uint32_t;
  static constexpr Place kNowhere = 0;  // the text is not of the grammar

  MatchCache(const Automaton& automaton, const Vocabulary& vocabulary);

  Place start() const { return start_; }
  Place Step(Place place, uint8_t byte);
  Place Step(Place place, std::string_view bytes);
  // The whole text may end here.
  bool Complete(Place place) const { return places_[place].complete; }
  // Some byte may follow.
  bool Open(Place place) const { return !places_[place].configurations.empty(); }
  std::shared_ptr<const TokenMask> Mask(Place place);

  // It holds so much that a new one should take its place.
  bool Full() const;

  // The same place of another cache of the grammar.
  Place Import(const MatchCache& other, Place place);

 private:
  // A state, and the calls around it as a list from the innermost one: nodes_[stack].
  struct Configuration {
    StateId state = 0;
    uint32_t stack = 0;
    auto operator<=>(const Configuration&) const = default;
  };
  struct StackNode {
    StateId next = 0;  // where the call goes on
    uint32_t below = 0;
    uint32_t depth = 0;
  };
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct PlaceData {
    std::vector<Configuration> configurations;  // sorted; of states with edges of bytes only
    bool complete = false;
    std::unique_ptr<std::array<uint32_t, 256>> next;
    std::shared_ptr<const TokenMask> mask;
  };

  void Reach(Configuration configuration);
  Place Intern();  // what Reach() has collected
  uint32_t Push(StateId next, uint32_t below);
  void Walk(const TokenTree& tree, Place place, TokenMask* mask);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  std::vector<PlaceData> places_;
  std::unordered_multimap<size_t, Place> by_hash_;
  std::vector<StackNode> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_of_;  // by next and below
  Place start_ = 0;
  size_t masks_ = 0;

  // Of Reach().
  std::vector<Configuration> work_;
  std::vector<Configuration> reached_;
  std::unordered_map<uint64_t, bool> seen_;
  bool complete_ = false;
  std::vector<Place> path_;  // of Walk()
};

}  // namespace litecache::grammar
