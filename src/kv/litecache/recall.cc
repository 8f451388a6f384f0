#include "kv/litecache/recall.h"

#include <algorithm>

namespace litecache::kv {

RecallMeter::RecallMeter(const Tiers& tiers, const KvOptions& options) : tiers_(tiers) {
  KvOptions exact = options;
  exact.retriever = "exact";
  exact_ = CreateRetriever(tiers.shape.layout, exact, nullptr, tiers.shape.pages.page_bytes);
}

double RecallMeter::Measure(Stream& stream, const SequenceView& sequence, int64_t layer,
                            int64_t head, const float* q, float scale, int64_t begin, int64_t end,
                            int64_t k, std::span<const int32_t> positions) {
  top_.resize(static_cast<size_t>(k));
  SelectWork select{.layer = layer,
                    .head = head,
                    .q = q,
                    .scale = scale,
                    .begin = begin,
                    .end = end,
                    .k = k,
                    .metadata = nullptr,
                    .rows = sequence.Rows(tiers_.shape, layer, head),
                    .positions = top_.data()};
  exact_->Select(stream, {&select, 1});
  sorted_.assign(positions.begin(), positions.end());
  std::sort(sorted_.begin(), sorted_.end());
  int64_t found = 0;
  for (int64_t i = 0; i < select.count; ++i) {
    found += std::binary_search(sorted_.begin(), sorted_.end(), top_[static_cast<size_t>(i)]);
  }
  return static_cast<double>(found) / static_cast<double>(select.count);
}

}  // namespace litecache::kv
