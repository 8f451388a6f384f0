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

void Add(const kv::Traffic& more, kv::Traffic* sum) {
  sum->rows += more.rows;
  sum->bytes += more.bytes;
}

void AddTraffic(const kv::Stats& more, kv::Stats* sum) {
  sum->bytes_read += more.bytes_read;
  sum->bytes_written += more.bytes_written;
  sum->bytes_scored += more.bytes_scored;
  Add(more.miss, &sum->miss);
  Add(more.prefetch, &sum->prefetch);
  Add(more.fill, &sum->fill);
  Add(more.spill, &sum->spill);
  Add(more.prefill, &sum->prefill);
  Add(more.admit, &sum->admit);
  Add(more.stream, &sum->stream);
  Add(more.activations, &sum->activations);
  sum->rows_recomputed += more.rows_recomputed;
  sum->lookups += more.lookups;
  sum->hits += more.hits;
  sum->verified += more.verified;
  sum->corrected += more.corrected;
}

}  // namespace

void PublishCounters(const parallel::ProcessGroup& group, const kv::Cache& cache) {
  Board board = group.board(group.rank());
  Write(cache.GetStats(), &board);
  for (const kv::HeadCounters& head : cache.Heads()) Write(head, &board);
}

RankCounters::RankCounters(const parallel::ProcessGroup& group, const model::ModelConfig& part,
                           const kv::Cache& own)
    : group_(group), part_(part), own_(own) {
  if (!own.Heads().empty()) {
    heads_.resize(static_cast<size_t>(part.layers * part.shard.whole->kv_heads));
  }
  // What the ranks of an engine before have written.
  for (int rank = 1; rank < group.ranks(); ++rank) {
    Board board = group.board(rank);
    Write(kv::Stats(), &board);
    for (size_t i = 0; i < own.Heads().size(); ++i) Write(kv::HeadCounters(), &board);
  }
}

kv::Stats RankCounters::Stats() {
  kv::Stats sum = own_.GetStats();
  std::ranges::fill(heads_, kv::HeadCounters());
  const std::span<const kv::HeadCounters> own = own_.Heads();
  const int64_t whole = part_.shard.whole->kv_heads;
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    Board board = group_.board(rank);
    if (rank > 0) AddTraffic(Read<kv::Stats>(&board), &sum);
    const int64_t first = HeadsOfRank(part_, rank).first_kv;
    for (size_t i = 0; i < own.size(); ++i) {
      const auto layer = static_cast<int64_t>(i) / part_.kv_heads;
      const auto head = first + static_cast<int64_t>(i) % part_.kv_heads;
      heads_[static_cast<size_t>(layer * whole + head)] +=
          rank == 0 ? own[i] : Read<kv::HeadCounters>(&board);
    }
  }
  return sum;
}

}  // namespace litecache::engine
