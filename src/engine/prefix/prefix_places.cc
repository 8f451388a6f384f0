// Places where prompts are kept while they are processed, for caches that cannot cut prefixes: a
// kept sequence serves only prompts that begin with all of it.
#include <algorithm>
#include <iterator>

#include "engine/prefix/prefix_reuse.h"

namespace litecache::engine {
namespace {

// Fewer tokens are computed again rather than kept.
constexpr int64_t kLeastKept = 64;
// A beginning that prompts share is kept if that saves so many tokens: it costs a chunk that ends
// there, and the memory of windows and states.
constexpr int64_t kLeastShared = 256;
// A group with so many places ahead takes no further one from groups that would wait for it.
constexpr size_t kMostPlaces = 2;

// The last of the group's places within the first `tokens` tokens; 0: none.
int64_t PlaceWithin(const Group& group, int64_t tokens) {
  const auto& places = group.keep_at;
  const auto beyond = std::ranges::upper_bound(places, tokens);
  return beyond == places.begin() ? 0 : *std::prev(beyond);
}

void AddPlace(Group* group, int64_t place) {
  group->keep_at.insert(std::ranges::upper_bound(group->keep_at, place), place);
}

}  // namespace

void PrefixReuse::ResolveWhole(Group* group, std::span<const int32_t> prompt,
                               const Groups& running) {
  const auto match = index_.Find(prompt);
  const int64_t tokens = match ? match->tokens : 0;
  int64_t shared = Cut(index_.LongestCommon(prompt));
  // The running group that will be kept at the last place, and the one that could be.
  Group *leader = nullptr, *able = nullptr;
  int64_t coming = tokens, possible = 0;
  for (const auto& other : running) {
    if (other.get() == group) break;  // a group waits for earlier ones only
    if (!Shares(*other) || other->ended) continue;
    const int64_t common = Cut(CommonPrefix(prompt, other->prompt()));
    shared = std::max(shared, common);
    if (const int64_t place = PlaceWithin(*other, common); place > coming) {
      leader = other.get();
      coming = place;
    }
    if (common > std::max(possible, other->prefilled) && other->keep_at.size() < kMostPlaces &&
        !other->all_logits()) {
      able = other.get();
      possible = common;
    }
  }
  if (able != nullptr && possible >= coming + kLeastShared) {
    leader = able;
    coming = possible;
    AddPlace(leader, coming);
  }
  if (leader != nullptr) return WaitFor(group, *leader, coming);
  if (match) StartFrom(group, match->sequence, tokens);
  ChoosePlaces(group, shared);
  Ready(group);
}

void PrefixReuse::ChoosePlaces(Group* group, int64_t shared) const {
  // Groups that wait for this one have added theirs.
  std::erase_if(group->keep_at, [&](int64_t place) { return place <= group->prefilled; });
  // The last tokens of a chat's prompt begin the answer ("<|im_start|>assistant\n<think>\n") and
  // can be other ones where the conversation goes on.
  const int64_t end = Cut(group->prompt_size() - kv::kPrefixTokens);
  const auto add = [&](int64_t place, int64_t least) {
    if (place >= group->prefilled + least && PlaceWithin(*group, place) < place) {
      AddPlace(group, place);
    }
  };
  add(std::min(shared, end), kLeastShared);
  if (end >= kLeastKept) add(end, 1);
}

void PrefixReuse::KeepPrompt(Group* group) {
  if (group->keep_at.empty() || group->keep_at.front() != group->prefilled) return;
  group->keep_at.erase(group->keep_at.begin());
  if (cache_.PrefixLength(group->prompt_sequence) != group->prefilled) return;
  const auto& prompt = group->prompt();
  KeepTokens(group->prompt_sequence, {prompt.begin(), prompt.begin() + group->prefilled});
}

}  // namespace litecache::engine
