// How much of the exact top-k a selection holds (KvOptions.measure_recall).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/litecache/tiers.h"
#include "kv/retriever.h"

namespace litecache::kv {

class RecallMeter {
 public:
  RecallMeter(const Tiers& tiers, const KvOptions& options);
  // Share of the exact top-k of [begin, end) for q that `positions` (any order) holds. The rows are
  // read where they are kept: from the host store for an offloaded head.
  double Measure(Stream& stream, const SequenceView& sequence, int64_t layer, int64_t head,
                 const float* q, float scale, int64_t begin, int64_t end, int64_t k,
                 std::span<const int32_t> positions);

 private:
  const Tiers& tiers_;
  std::unique_ptr<Retriever> exact_;
  std::vector<int32_t> top_, sorted_;
};

}  // namespace litecache::kv
