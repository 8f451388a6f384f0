// Moves rows that leave the recent window from their slots to the host store, and encodes their
// keys into the retriever's metadata.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/litecache/tiers.h"
#include "kv/retrieve/retriever.h"
#include "litecache/kv_stats.h"
#include "ops/rows/move_rows.h"

namespace litecache::kv {

// Tokens [begin, end) of one sequence; they are in its sink and ring slots.
struct SpillWork {
  const SequenceView* sequence = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

class Spiller {
 public:
  Spiller(Tiers& tiers, Retriever& retriever) : tiers_(tiers), retriever_(retriever) {}
  // Spills for all heads of a layer. May be repeated.
  void Run(Stream& stream, int64_t layer, std::span<const SpillWork> work, Traffic* traffic);

 private:
  Tiers& tiers_;
  Retriever& retriever_;
  // Scratch.
  std::vector<int32_t> slots_, tokens_;
  std::vector<float> keys_;
  std::vector<ops::MoveWork> moves_;
  std::vector<EncodeWork> encodes_;
};

}  // namespace litecache::kv
