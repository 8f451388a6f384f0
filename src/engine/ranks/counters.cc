#include "engine/ranks/counters.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "model/shard.h"

namespace litecache::engine {
namespace {

using Board = std::span<uint64_t>;

template <class T>
constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);

// A rank reads a word while another writes it.
template <class T>
void Write(const T& value, Board* to) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
  uint64_t words[kWords<T>];
  std::memcpy(words, &value, sizeof(T));
  LC_CHECK(to->size() >= kWords<T>);
  for (size_t i = 0; i < kWords<T>; ++i) {
    std::atomic_ref((*to)[i]).store(words[i], std::memory_order_relaxed);
  }
  *to = to->subspan(kWords<T>);
}
template <class T>
T Read(Board* from) {
  uint64_t words[kWords<T>];
  LC_CHECK(from->size() >= kWords<T>);
  for (size_t i = 0; i < kWords<T>; ++i) {
    words[i] = std::atomic_ref((*from)[i]).load(std::memory_order_relaxed);
  }
  *from = from->subspan(kWords<T>);
  T value;
  std::memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace

void PublishCounters(const parallel::ProcessGroup& group, const kv::Cache& cache) {
  Board board = group.board(group.rank());
  Write(cache.GetStats(), &board);
  for (const kv::HeadCounters& head : cache.Heads()) Write(head, &board);
}

kv::Stats PublishedStats(const parallel::ProcessGroup& group, int rank) {
  Board board = group.board(rank);
  return Read<kv::Stats>(&board);
}

RankCounters::RankCounters(const parallel::ProcessGroup& group, const model::ModelConfig& part,
                           const kv::Cache& own)
    : group_(group), part_(part), own_(own) {
  if (!own.Heads().empty()) {
    heads_.resize(static_cast<size_t>(part.layers * part.shard.whole->kv_heads));
  }
  // What the ranks of an engine before have written.
  for (int rank = 0; rank < group.ranks(); ++rank) {
    Board board = group.board(rank);
    Write(kv::Stats(), &board);
    for (size_t i = 0; i < own.Heads().size(); ++i) Write(kv::HeadCounters(), &board);
  }
}

kv::Stats RankCounters::Stats() {
  PublishCounters(group_, own_);
  kv::Stats sum;
  kv::Stats first;
  std::ranges::fill(heads_, kv::HeadCounters());
  const int64_t whole = part_.shard.whole->kv_heads;
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    Board board = group_.board(rank);
    const auto stats = Read<kv::Stats>(&board);
    if (rank == 0) first = stats;
    sum += stats;
    const int64_t first_head = HeadsOfRank(part_, rank).first_kv;
    for (size_t i = 0; i < own_.Heads().size(); ++i) {
      const auto layer = static_cast<int64_t>(i) / part_.kv_heads;
      const auto head = first_head + static_cast<int64_t>(i) % part_.kv_heads;
      heads_[static_cast<size_t>(layer * whole + head)] += Read<kv::HeadCounters>(&board);
    }
  }
  sum.peak = first.peak;
  sum.used = first.used;
  sum.provided = first.provided;
  sum.capacity = first.capacity;
  return sum;
}

}  // namespace litecache::engine
