// Replaces a head's cached rows by the top-k of a query: select, place, move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/litecache/result_override.h"
#include "kv/litecache/tiers.h"
#include "kv/retrieve/retriever.h"
#include "ops/rows/move_rows.h"

namespace litecache::kv {

// One offloaded head of one sequence.
struct RefreshWork {
  const SequenceView* sequence = nullptr;
  int64_t head = 0;
  const float* q = nullptr;  // [group][head_dim]
  // Candidates are positions [begin, end); selects k of them, or all if there are at most k. With a
  // budget by need Run() sets k to the number it has selected.
  int64_t begin = 0, end = 0;
  int64_t k = 0;
  int64_t capacity = 0;  // slots for cached rows
  // Results.
  bool verifying = false;              // HeadAtStep::verifying
  std::span<const int32_t> positions;  // selected; valid until the next Run()
  int64_t moved = 0;                   // how many of them were transferred from the host store
};

class Refresher {
 public:
  Refresher(Tiers& tiers, Retriever& retriever, bool delta)
      : tiers_(tiers), retriever_(retriever), delta_(delta) {}
  // results: null without an override.
  void Run(Stream& stream, int64_t layer, float scale, const ResultOverride* results,
           std::span<RefreshWork> work);

 private:
  void ReplaceRows(Stream& stream, int64_t layer, const ResultOverride& results,
                   std::span<const RefreshWork> work);

  Tiers& tiers_;
  Retriever& retriever_;
  bool delta_;
  // Scratch.
  std::vector<int32_t> positions_, moved_positions_, moved_slots_;
  std::vector<SelectWork> selects_;
  std::vector<size_t> selecting_;
  std::vector<UpdateWork> updates_;
  std::vector<ops::MoveWork> moves_;
  std::vector<FoundRows> found_;
};

}  // namespace litecache::kv
