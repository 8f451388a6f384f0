// Statistics of a KV cache: memory, traffic, hits.
#pragma once

#include <cstdint>

namespace litecache::kv {

// Bytes in the two tiers. On the CPU both are RAM; budgets and traffic are still counted
// separately.
struct TierBytes {
  uint64_t device = 0;
  uint64_t host = 0;

  TierBytes& operator+=(const TierBytes& other) {
    device += other.device;
    host += other.host;
    return *this;
  }
  friend TierBytes operator+(TierBytes a, const TierBytes& b) { return a += b; }
  friend TierBytes operator*(uint64_t n, const TierBytes& a) { return {n * a.device, n * a.host}; }
  bool FitsIn(const TierBytes& budget) const {
    return device <= budget.device && host <= budget.host;
  }
  uint64_t total() const { return device + host; }
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

// Rows and bytes transferred since start. Bytes are those of the host row format.
struct Traffic {
  uint64_t rows = 0;
  uint64_t bytes = 0;

  Traffic& operator+=(const Traffic& other) {
    rows += other.rows;
    bytes += other.bytes;
    return *this;
  }
};

// Counters of one (layer, KV head) since start.
struct HeadCounters {
  // Decode steps with more candidates than the head may keep; for a block cache: rows looked up.
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t rows_selected = 0;  // rows that the retriever selected
  // Selected rows that were not cached and were transferred from the host store.
  uint64_t rows_moved = 0;
  double similarity = 0;  // cosine similarity, summed over lookups
  // Lookups with a predicted query that were checked with the actual one; of these, those that
  // missed, so that the head chose its rows anew; and the cosine similarity of the actual query and
  // the label, summed over the checks.
  uint64_t verified = 0, corrected = 0;
  double verified_similarity = 0;
  // With KvOptions.measure_recall: the share of the exact top-k, summed over lookups, ...
  double recall_retrieved = 0;  // ... that the retriever finds with the same query (refreshes only)
  double recall_held = 0;       // ... that is attended, stale rows of hits included
  uint64_t recall_refreshes = 0;

  HeadCounters& operator+=(const HeadCounters& other) {
    lookups += other.lookups;
    hits += other.hits;
    rows_selected += other.rows_selected;
    rows_moved += other.rows_moved;
    similarity += other.similarity;
    verified += other.verified;
    corrected += other.corrected;
    verified_similarity += other.verified_similarity;
    recall_retrieved += other.recall_retrieved;
    recall_held += other.recall_held;
    recall_refreshes += other.recall_refreshes;
    return *this;
  }
};

struct Stats {
  TierBytes peak;           // the largest value of `used`
  TierBytes used;           // pages in use
  TierBytes provided;       // memory allocated for pages, used or free
  TierBytes capacity;       // budgets
  uint64_t bytes_read = 0;  // KV bytes that attention has read since start
  uint64_t bytes_written = 0;
  // Retriever metadata (exact: rows) that selections have read, in bytes.
  uint64_t bytes_scored = 0;
  Traffic miss;                  // rows transferred after a lookup with the actual query
  Traffic prefetch;              // rows transferred after a lookup with a predicted query
  Traffic fill;                  // rows that filled the slots after a prompt: sink, recent, top-k
  Traffic spill;                 // rows that left the recent window, device to host
  Traffic prefill;               // rows of prompts, device to host
  Traffic admit;                 // rows of whole blocks that entered a block cache
  Traffic stream;                // rows of whole contexts, transferred for a layer
  Traffic activations;           // layers' inputs, transferred to recompute rows: one per token
  uint64_t rows_recomputed = 0;  // rows of all heads that were recomputed from activations
  // Sums over heads.
  uint64_t lookups = 0, hits = 0, verified = 0, corrected = 0;

  Traffic moved() const {  // between the tiers, for whatever reason
    Traffic sum;
    for (const Traffic* part :
         {&miss, &prefetch, &fill, &spill, &prefill, &admit, &stream, &activations}) {
      sum += *part;
    }
    return sum;
  }
  // Of two caches together; the sum of their peaks is an upper bound.
  Stats& operator+=(const Stats& other) {
    peak += other.peak;
    used += other.used;
    provided += other.provided;
    capacity += other.capacity;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    bytes_scored += other.bytes_scored;
    miss += other.miss;
    prefetch += other.prefetch;
    fill += other.fill;
    spill += other.spill;
    prefill += other.prefill;
    admit += other.admit;
    stream += other.stream;
    activations += other.activations;
    rows_recomputed += other.rows_recomputed;
    lookups += other.lookups;
    hits += other.hits;
    verified += other.verified;
    corrected += other.corrected;
    return *this;
  }
};

}  // namespace litecache::kv
