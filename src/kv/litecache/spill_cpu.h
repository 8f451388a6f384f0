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
  // Encodes rows of the store that have no metadata because a part of its unit was taken back
  // (Tiers). May be repeated.
  void EncodeStored(Stream& stream, int64_t layer, std::span<const SequenceView> sequences);

 private:
  // Adds the keys of work's tokens of a head, if it has metadata, to encodes_; they are rows
  // `indices` of `rows` and are converted to *keys, which moves behind them.
  void AddEncode(int64_t layer, int64_t head, const SpillWork& work, const ops::PagedRows& rows,
                 const int32_t* indices, float** keys);
  // Room in keys_ for that many tokens of all heads.
  float* MakeRoom(int64_t tokens);
  void Encode(Stream& stream);

  Tiers& tiers_;
  Retriever& retriever_;
  // Scratch.
  std::vector<int32_t> slots_, tokens_;
  std::vector<float> keys_;
  std::vector<ops::MoveWork> moves_;
  std::vector<EncodeWork> encodes_;
};

}  // namespace litecache::kv
