#include "engine/prefix/prefix_index.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace litecache::engine {

int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void PrefixIndex::Touch(Entries::iterator entry) {
  by_use_.erase(entry->second.used);
  entry->second.used = ++uses_;
  by_use_.emplace(uses_, entry);
}

std::pair<PrefixIndex::Entries::iterator, int64_t> PrefixIndex::Closest(
    std::span<const int32_t> prompt) {
  auto best = entries_.end();
  int64_t longest = 0;
  const auto consider = [&](Entries::iterator entry) {
    const int64_t common = CommonPrefix(prompt, entry->first);
    if (common <= longest) return;
    longest = common;
    best = entry;
  };
  const auto next = entries_.lower_bound(prompt);
  if (next != entries_.end()) consider(next);
  if (next != entries_.begin()) consider(std::prev(next));
  return {best, longest};
}

PrefixIndex::Entries::iterator PrefixIndex::LongestWhole(std::span<const int32_t> prompt) {
  while (true) {
    const auto next = entries_.upper_bound(prompt);
    if (next == entries_.begin()) return entries_.end();
    const auto before = std::prev(next);
    const int64_t common = CommonPrefix(prompt, before->first);
    if (common == static_cast<int64_t>(before->first.size())) return before;
    // What begins the prompt and comes before this sequence begins this sequence, too.
    prompt = prompt.first(static_cast<size_t>(common));
  }
}

std::optional<PrefixIndex::Match> PrefixIndex::Find(std::span<const int32_t> prompt) {
  const auto best = cuts_ ? Closest(prompt).first : LongestWhole(prompt);
  if (best == entries_.end()) return std::nullopt;
  Touch(best);
  return Match{best->second.sequence, CommonPrefix(prompt, best->first)};
}

bool PrefixIndex::Covers(std::span<const int32_t> tokens) {
  const auto next = entries_.lower_bound(tokens);
  if (next == entries_.end() || (!cuts_ && next->first.size() != tokens.size())) return false;
  if (CommonPrefix(tokens, next->first) < static_cast<int64_t>(tokens.size())) return false;
  Touch(next);
  return true;
}

std::optional<kv::SequenceId> PrefixIndex::Add(std::vector<int32_t> tokens,
                                               kv::SequenceId sequence) {
  const auto [added, fresh] = entries_.emplace(std::move(tokens), Entry{sequence, 0});
  LC_CHECK(fresh, "the sequence is kept already");
  by_use_.emplace(added->second.used = ++uses_, added);
  // A sequence that is a prefix of this one is right before it: anything in between would begin
  // with it, too.
  if (!cuts_ || added == entries_.begin()) return std::nullopt;
  const auto before = std::prev(added);
  if (CommonPrefix(before->first, added->first) < static_cast<int64_t>(before->first.size())) {
    return std::nullopt;
  }
  const kv::SequenceId covered = before->second.sequence;
  by_use_.erase(before->second.used);
  entries_.erase(before);
  return covered;
}

std::optional<kv::SequenceId> PrefixIndex::PopOldest() {
  if (by_use_.empty()) return std::nullopt;
  const auto oldest = by_use_.begin()->second;
  const kv::SequenceId sequence = oldest->second.sequence;
  by_use_.erase(by_use_.begin());
  entries_.erase(oldest);
  return sequence;
}

std::vector<kv::SequenceId> PrefixIndex::Sequences() const {
  std::vector<kv::SequenceId> sequences;
  for (const auto& [tokens, entry] : entries_) sequences.push_back(entry.sequence);
  return sequences;
}

}  // namespace litecache::engine
