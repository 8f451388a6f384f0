#include "grammar/match_cache.h"

#include <algorithm>
#include <utility>

namespace litecache::grammar {
namespace {

// Depth of nested calls; a reader of the JSON has to nest about half as deep.
constexpr uint32_t kMaxDepth = 256;
// Configurations that a place keeps in an ambiguous grammar. Each can be completed without the
// others.
constexpr size_t kMaxConfigurations = 512;
// Limits of a cache: places (1.2 KiB each) with their configurations (8 bytes each), and masks
// (16 KiB each for 128K tokens).
constexpr size_t kMaxPlaces = 10'000;
constexpr size_t kMaxKept = 1'000'000;
constexpr size_t kMaxMaskBytes = size_t{16} << 20;
constexpr size_t kMaxNodes = 1'000'000;
// Work of a step that is not cached, without that of its configurations.
constexpr int64_t kWorkOfAPlace = 20;

uint64_t Key(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }

}  // namespace

MatchCache::MatchCache(const Automaton& automaton, const Vocabulary& vocabulary)
    : automaton_(automaton), vocabulary_(vocabulary) {
  places_.emplace_back();  // kNowhere
  nodes_.emplace_back();   // outside all calls
  Reach({automaton.start, 0});
  start_ = Intern();
}

uint32_t MatchCache::Push(StateId next, uint32_t below) {
  const auto [found, added] =
      node_of_.try_emplace(Key(next, below), static_cast<uint32_t>(nodes_.size()));
  if (added) nodes_.push_back({next, below, nodes_[below].depth + 1});
  return found->second;
}

void MatchCache::Reach(Configuration configuration) {
  // The end stays reachable: a call that would have to nest deeper than allowed is not started.
  const auto add = [&](StateId state, uint32_t stack) {
    const uint32_t height = automaton_.states[state].height;
    if (height == kUnlimited || nodes_[stack].depth + height > kMaxDepth) return;
    if (seen_.size() >= SeenKeys::kMost) return;
    if (seen_.Add(Key(state, stack))) to_visit_.push_back({state, stack});
  };
  add(configuration.state, configuration.stack);
  while (!to_visit_.empty()) {
    const Configuration at = to_visit_.back();
    to_visit_.pop_back();
    work_ += 1 + static_cast<int64_t>(automaton_.states[at.state].jumps.size());
    const State& state = automaton_.states[at.state];
    if (!state.bytes.empty() && reached_.size() < kMaxConfigurations) reached_.push_back(at);
    for (const StateId target : state.jumps) add(target, at.stack);
    for (const CallEdge& call : state.calls) {
      // The caller must be able to continue, too.
      const uint32_t height = automaton_.states[call.next].height;
      if (height == kUnlimited || nodes_[at.stack].depth + height > kMaxDepth) continue;
      add(call.callee, Push(call.next, at.stack));
    }
    if (!state.returns) continue;
    if (at.stack == 0) {
      complete_ = true;
    } else {
      add(nodes_[at.stack].next, nodes_[at.stack].below);
    }
  }
}

MatchCache::Place MatchCache::Intern() {
  seen_.Clear();
  std::sort(reached_.begin(), reached_.end());
  size_t hash = complete_;
  for (const Configuration& at : reached_) {
    hash = (hash ^ Key(at.state, at.stack)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  const bool complete = std::exchange(complete_, false);
  if (reached_.empty() && !complete) return kNowhere;
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const PlaceData& place = places_[it->second];
    if (place.complete == complete && place.configurations == reached_) {
      reached_.clear();
      return it->second;
    }
  }
  const auto id = static_cast<Place>(places_.size());
  places_.emplace_back();
  configurations_ += reached_.size();
  places_.back().configurations = std::exchange(reached_, {});
  places_.back().complete = complete;
  by_hash_.emplace(hash, id);
  return id;
}

MatchCache::Place MatchCache::Step(Place place, uint8_t byte) {
  if (place == kNowhere) return kNowhere;
  if (places_[place].next == nullptr) {
    places_[place].next = std::make_unique<std::array<uint32_t, 256>>();
    places_[place].next->fill(kUnknown);
  }
  if (const uint32_t known = (*places_[place].next)[byte]; known != kUnknown) return known;
  work_ += kWorkOfAPlace;
  for (const Configuration& at : places_[place].configurations) {
    const std::vector<ByteEdge>& edges = automaton_.states[at.state].bytes;
    work_ += 1 + static_cast<int64_t>(edges.size() / 8);
    for (const ByteEdge& edge : edges) {
      if (edge.low <= byte && byte <= edge.high) Reach({edge.target, at.stack});
    }
  }
  const Place next = Intern();
  (*places_[place].next)[byte] = next;
  return next;
}

MatchCache::Place MatchCache::Step(Place place, std::string_view bytes) {
  for (const char byte : bytes) place = Step(place, static_cast<uint8_t>(byte));
  return place;
}

MatchCache::MaskWalk MatchCache::BeginMask(Place place) {
  MaskWalk walk;
  walk.place = place;
  walk.path.resize(1 + std::max(vocabulary_.other().depth, vocabulary_.plain().depth));
  walk.path[0] = place;
  // Inside a string most of the vocabulary may follow: that part is precomputed, and only the
  // tokens that end the string or need care are walked.
  uint32_t plain = 0;
  for (const Configuration& at : places_[place].configurations) {
    const State& state = automaton_.states[at.state];
    plain = std::max(plain, state.plain);
    if (state.plain == 0) reached_.push_back(at);
  }
  walk.rest = Intern();  // without the insides of strings
  walk.mask = plain > 0 ? std::make_shared<TokenMask>(vocabulary_.PlainUpTo(plain))
                        : std::make_shared<TokenMask>((vocabulary_.size() + 31) / 32);
  return walk;
}

bool MatchCache::ContinueMask(MaskWalk* walk, int64_t work) {
  const int64_t end = work_ + work;
  while (true) {
    const TokenTree& tree = TreeOf(*walk);
    while (walk->node < tree.nodes.size()) {
      if (work_ >= end) return false;
      ++work_;
      const TokenTree::Node& node = tree.nodes[walk->node];
      const Place next = Step(walk->path[node.depth - 1], node.byte);
      if (next == kNowhere) {
        walk->node = node.end;
        continue;
      }
      walk->path[node.depth] = next;
      for (uint32_t t = node.tokens_begin; t < node.tokens_end; ++t) {
        const auto token = static_cast<uint32_t>(tree.tokens[t]);
        (*walk->mask)[token / 32] |= 1u << (token % 32);
      }
      ++walk->node;
    }
    if (walk->plain) break;
    walk->plain = true;
    walk->node = 0;
    walk->path[0] = walk->rest;
  }
  masks_ += walk->mask->size() * sizeof(uint32_t);
  places_[walk->place].mask = walk->mask;
  return true;
}

std::shared_ptr<const TokenMask> MatchCache::Mask(Place place) {
  if (places_[place].mask == nullptr) {
    MaskWalk walk = BeginMask(place);
    ContinueMask(&walk, INT64_MAX / 2);
  }
  return places_[place].mask;
}

bool MatchCache::Full() const {
  return places_.size() > kMaxPlaces || masks_ > kMaxMaskBytes || nodes_.size() > kMaxNodes ||
         configurations_ > kMaxKept;
}

MatchCache::Place MatchCache::Import(const MatchCache& other, Place place) {
  const PlaceData& from = other.places_[place];
  for (const Configuration& at : from.configurations) {
    std::vector<StateId> calls;
    for (uint32_t node = at.stack; node != 0; node = other.nodes_[node].below) {
      calls.push_back(other.nodes_[node].next);
    }
    uint32_t stack = 0;
    for (size_t i = calls.size(); i-- > 0;) stack = Push(calls[i], stack);
    reached_.push_back({at.state, stack});
  }
  complete_ = from.complete;
  return Intern();
}

MatchCache::MaskWalk MatchCache::Import(const MatchCache& other, MaskWalk walk) {
  walk.place = Import(other, walk.place);
  walk.rest = Import(other, walk.rest);
  // Places of deeper nodes are written before they are read.
  const TokenTree& tree = TreeOf(walk);
  const size_t known = walk.node < tree.nodes.size() ? tree.nodes[walk.node].depth : 1;
  for (size_t depth = 0; depth < known; ++depth) {
    walk.path[depth] = Import(other, walk.path[depth]);
  }
  return walk;
}

}  // namespace litecache::grammar
