// What a KV cache holds and has moved.
#pragma once

#include <cstdint>

namespace litecache::kv {

// Bytes in the two tiers. On the CPU both are RAM; budgets and traffic are counted all the same.
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

// Rows and bytes over the link since start. Bytes are as they travel (host row format).
struct Traffic {
  uint64_t rows = 0;
  uint64_t bytes = 0;
};

// One (layer, KV head) since start.
struct HeadCounters {
  // Decode steps with more candidates than the head may keep; of a block cache: rows looked up.
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t rows_selected = 0;  // by its retriever
  uint64_t rows_moved = 0;     // of those: not cached yet, brought from the host store
  double similarity = 0;       // sum over lookups
  // With KvOptions.measure_recall: sums over lookups of the share of the exact top-k that
  double recall_retrieved = 0;  // ... the retriever finds with the same query (refreshes only)
  double recall_held = 0;       // ... is attended, stale rows of hits included
  uint64_t recall_refreshes = 0;

  HeadCounters& operator+=(const HeadCounters& other) {
    lookups += other.lookups;
    hits += other.hits;
    rows_selected += other.rows_selected;
    rows_moved += other.rows_moved;
    similarity += other.similarity;
    recall_retrieved += other.recall_retrieved;
    recall_held += other.recall_held;
    recall_refreshes += other.recall_refreshes;
    return *this;
  }
};

struct Stats {
  TierBytes peak;           // the most that was in use at once
  TierBytes used;           // pages in use
  TierBytes provided;       // memory taken for pages, in use or free
  TierBytes capacity;       // budgets
  uint64_t bytes_read = 0;  // KV bytes attention has read since start
  uint64_t bytes_written = 0;
  uint64_t bytes_scored = 0;       // retriever metadata (exact: rows) that selections have read
  Traffic miss;                    // rows a lookup with the actual query brought
  Traffic prefetch;                // rows a lookup with a predicted query brought
  Traffic fill;                    // rows that filled the slots after a prompt: sink, recent, top-k
  Traffic spill;                   // rows that left the recent window, device to host
  Traffic prefill;                 // rows of prompts, device to host
  Traffic admit;                   // rows of whole blocks that entered a block cache
  Traffic stream;                  // rows of whole contexts, brought for a layer
  Traffic activations;             // a layer's inputs, brought to recompute rows: one a token
  uint64_t rows_recomputed = 0;    // from activations, rows of all heads counted
  uint64_t lookups = 0, hits = 0;  // sums over heads
};

}  // namespace litecache::kv
