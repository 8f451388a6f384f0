// A head's cached rows become the top-k of a query: select, place, move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/litecache/tiers.h"
#include "kv/retrieve/retriever.h"
#include "lab/impose/impose_reuse.h"
#include "ops/rows/move_rows.h"

namespace litecache::kv {

// One offloaded head of one sequence.
struct RefreshWork {
  const SequenceView* sequence = nullptr;
  int64_t head = 0;
  const float* q = nullptr;  // [group][head_dim]
  // Candidates [begin, end); k of them, or all where there are no more.
  int64_t begin = 0, end = 0;
  int64_t k = 0;
  int64_t capacity = 0;  // slots for cached rows
  int32_t kept = -1;     // ops::ImposedHead's
  // Results.
  std::span<const int32_t> positions;  // selected, until the next Run()
  int64_t moved = 0;                   // of those: brought from the host store
};

class Refresher {
 public:
  Refresher(Tiers& tiers, Retriever& retriever, bool delta)
      : tiers_(tiers), retriever_(retriever), delta_(delta) {}
  void Run(Stream& stream, int64_t layer, float scale, std::span<RefreshWork> work);

 private:
  // Selections of heads whose kept is imposed become those.
  void ImposeOverlap(Stream& stream, std::span<const RefreshWork> work);

  Tiers& tiers_;
  Retriever& retriever_;
  bool delta_;
  // Scratch.
  std::vector<int32_t> positions_, moved_positions_, moved_slots_;
  std::vector<SelectWork> selects_;
  std::vector<size_t> selecting_;
  std::vector<UpdateWork> updates_;
  std::vector<ops::MoveWork> moves_;
  std::vector<ops::ImposeOverlapWork> imposes_;
  std::vector<std::vector<int32_t>> cached_;
};

}  // namespace litecache::kv
