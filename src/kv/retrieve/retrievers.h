// The retrievers behind CreateRetriever, and what they share.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kv/retriever.h"
#include "ops/hash_select.h"
#include "ops/projection_select.h"
#include "ops/selection.h"

namespace litecache::kv {

std::unique_ptr<Retriever> CreateExactRetriever(const Layout& layout, const KvOptions& options);
std::unique_ptr<Retriever> CreateHataRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes);
std::unique_ptr<Retriever> CreateQuestRetriever(const Layout& layout, uint64_t page_bytes);
std::unique_ptr<Retriever> CreateLokiRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes);

// What hata_group asks for.
ops::HashScore HataScore(const KvOptions& options);
// Throws InvalidArgument for a rank the heads do not have.
ops::ProjectionFormat LokiFormat(const Layout& layout, const KvOptions& options);

// Tokens of metadata a page holds in whole blocks. Throws InvalidArgument for a page that holds
// none.
inline int64_t MetadataTokens(std::string_view retriever, uint64_t page_bytes, int64_t block_bytes,
                              int64_t block_tokens) {
  const auto blocks = static_cast<int64_t>(page_bytes / static_cast<uint64_t>(block_bytes));
  if (blocks == 0) {
    throw InvalidArgument(
        "pages of {} bytes are too small for retriever '{}': {} tokens take {} bytes", page_bytes,
        retriever, block_tokens, block_bytes);
  }
  return blocks * block_tokens;
}

inline ops::Selection ToSelection(const SelectWork& w) {
  return {.begin = w.begin, .end = w.end, .k = w.k, .positions = w.positions};
}

// A matrix a (layer, KV head), copied from the profile so that it need not outlive the retriever.
class HeadMatrices {
 public:
  HeadMatrices(const Layout& layout, int64_t rows, int64_t cols)
      : kv_heads_(layout.kv_heads),
        size_(rows * cols),
        values_(static_cast<size_t>(layout.layers * layout.kv_heads * size_)) {}

  int64_t count() const { return static_cast<int64_t>(values_.size()) / size_; }
  float* Of(int64_t index) { return values_.data() + index * size_; }
  const float* Of(int64_t layer, int64_t head) const {
    return values_.data() + (layer * kv_heads_ + head) * size_;
  }
  std::span<const float> Layer(int64_t layer) const {
    return {Of(layer, 0), static_cast<size_t>(kv_heads_ * size_)};
  }

 private:
  int64_t kv_heads_;
  int64_t size_;
  std::vector<float> values_;
};

// Runs select over `work` as operations' work items and brings their counts back. items is kept by
// the caller, so that nothing is allocated once it has grown.
template <class Item, class Convert, class Select>
void SelectAs(std::span<SelectWork> work, std::vector<Item>& items, const Convert& convert,
              const Select& select) {
  items.clear();
  for (const SelectWork& w : work) items.push_back(convert(w));
  select(std::span<Item>(items));
  for (size_t i = 0; i < work.size(); ++i) work[i].count = items[i].selection.count;
}

}  // namespace litecache::kv
