#include "kv/retrieve/recall_meter.h"

#include <algorithm>

namespace litecache::kv {

RecallMeter::RecallMeter(const Layout& layout, const KvOptions& options, uint64_t page_bytes) {
  KvOptions exact = options;
  exact.retriever = "exact";
  exact_ = CreateRetriever(layout, exact, nullptr, page_bytes);
}

double RecallMeter::Measure(Stream& stream, const ops::PagedRows& rows, const float* q, float scale,
                            int64_t begin, int64_t end, int64_t k,
                            std::span<const int32_t> positions) {
  top_.resize(static_cast<size_t>(k));
  SelectWork select{.q = q,
                    .scale = scale,
                    .begin = begin,
                    .end = end,
                    .k = k,
                    .metadata = nullptr,
                    .rows = rows,
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
