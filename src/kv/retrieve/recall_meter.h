// Measures how much of the exact top-k a selection contains (KvOptions.measure_recall).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/retrieve/retriever.h"

namespace litecache::kv {

class RecallMeter {
 public:
  // page_bytes: size of the device's pages.
  RecallMeter(const Layout& layout, const KvOptions& options, uint64_t page_bytes);
  // Returns the share of the exact top-k of [begin, end) for q [group][head_dim] that `positions`
  // (any order) contains. rows: those of the (sequence, layer, KV head), in either tier.
  double Measure(Stream& stream, const ops::PagedRows& rows, const float* q, float scale,
                 int64_t begin, int64_t end, int64_t k, std::span<const int32_t> positions);

 private:
  std::unique_ptr<Retriever> exact_;
  std::vector<int32_t> top_, sorted_;
};

}  // namespace litecache::kv
