// The retrievers behind CreateRetriever, and what they share.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/retrieve/retriever.h"
#include "ops/select/hash_select.h"
#include "ops/select/keys_select.h"
#include "ops/select/projection_select.h"
#include "ops/select/selection.h"

namespace litecache::kv {

std::unique_ptr<Retriever> CreateExactRetriever(const Layout& layout, const KvOptions& options);
std::unique_ptr<Retriever> CreateHataRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes);
std::unique_ptr<Retriever> CreateKeysRetriever(const Layout& layout, std::string_view name,
                                               uint64_t page_bytes);
std::unique_ptr<Retriever> CreateQuestRetriever(const Layout& layout, uint64_t page_bytes);
std::unique_ptr<Retriever> CreateLokiRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes);

// The scoring that options.hata_group selects.
ops::HashScore HataScore(const KvOptions& options);
// retriever: keys or keys2.
ops::KeysFormat KeysFormatOf(const Layout& layout, std::string_view retriever);
// Throws InvalidArgument for a rank that does not fit head_dim.
ops::ProjectionFormat LokiFormat(const Layout& layout, const KvOptions& options);

// Tokens of metadata in a page, in whole blocks. Throws InvalidArgument for a page smaller than one
// block.
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
  return {.begin = w.begin, .end = w.end, .k = w.k, .fewest = w.fewest, .positions = w.positions};
}

// One matrix per (layer, KV head), copied from the profile, which need not outlive the retriever,
// or one for all heads.
class HeadMatrices {
 public:
  HeadMatrices(const Layout& layout, int64_t rows, int64_t cols)
      : kv_heads_(layout.kv_heads),
        size_(rows * cols),
        values_(static_cast<size_t>(layout.layers * layout.kv_heads * size_)) {}
  HeadMatrices(int64_t rows, int64_t cols)
      : size_(rows * cols), values_(static_cast<size_t>(size_)) {}

  int64_t count() const { return static_cast<int64_t>(values_.size()) / size_; }
  float* Of(int64_t index) { return values_.data() + index * size_; }
  const float* Of(int64_t layer, int64_t head) const {
    return values_.data() + (kv_heads_ == 0 ? 0 : layer * kv_heads_ + head) * size_;
  }
  std::span<const float> Layer(int64_t layer) const {
    return {Of(layer, 0), static_cast<size_t>(std::max<int64_t>(kv_heads_, 1) * size_)};
  }

 private:
  int64_t kv_heads_ = 0;  // 0: one matrix for all
  int64_t size_;
  std::vector<float> values_;
};

// Converts `work` to the operation's items, runs `select`, and copies the counts back. The caller
// keeps items, so that its memory is reused.
template <class Item, class Convert, class Select>
void SelectAs(std::span<SelectWork> work, std::vector<Item>& items, const Convert& convert,
              const Select& select) {
  items.clear();
  for (const SelectWork& w : work) items.push_back(convert(w));
  select(std::span<Item>(items));
  for (size_t i = 0; i < work.size(); ++i) work[i].count = items[i].selection.count;
}

// Base of retrievers that multiply keys and queries by one matrix per head. Operations names the
// operations' types (Format, EncodeItem, SelectItem) and the items' matrix member.
template <class Operations>
class MatrixRetriever : public Retriever {
 public:
  using Format = typename Operations::Format;
  using EncodeItem = typename Operations::EncodeItem;
  using SelectItem = typename Operations::SelectItem;

  std::string_view name() const override { return name_; }
  int64_t metadata_tokens() const override { return metadata_tokens_; }
  TableUnit metadata_unit() const override {
    return {Format::kBlockTokens, static_cast<uint64_t>(format_.block_bytes())};
  }
  double metadata_bytes_per_token() const override {
    return static_cast<double>(format_.token_bytes());
  }
  uint64_t BytesScored(int64_t candidates) const override {
    return static_cast<uint64_t>(candidates * format_.token_bytes());
  }
  std::span<const float> Weights(int64_t layer) const override { return matrices_.Layer(layer); }

  void Encode(Stream& stream, std::span<const EncodeWork> work) override {
    encode_.clear();
    for (const EncodeWork& w : work) {
      EncodeItem item{.keys = w.keys,
                      .key_stride = w.key_stride,
                      .begin = w.begin,
                      .count = w.count,
                      .metadata = {w.metadata, metadata_tokens_}};
      item.*Operations::kEncodeMatrix = matrices_.Of(w.layer, w.head);
      encode_.push_back(item);
    }
    EncodeItems(stream, encode_);
  }

  void Select(Stream& stream, std::span<SelectWork> work) override {
    SelectAs(
        work, select_,
        [&](const SelectWork& w) {
          SelectItem item{.q = w.q,
                          .scale = w.scale,
                          .cap = score_cap_,
                          .metadata = {w.metadata, metadata_tokens_},
                          .selection = ToSelection(w)};
          item.*Operations::kSelectMatrix = matrices_.Of(w.layer, w.head);
          return item;
        },
        [&](std::span<SelectItem> items) { SelectItems(stream, items); });
  }

 protected:
  // name: a string literal.
  MatrixRetriever(std::string_view name, const Layout& layout, const Format& format,
                  uint64_t page_bytes, HeadMatrices matrices)
      : head_dim_(layout.head_dim),
        group_(layout.q_heads / layout.kv_heads),
        score_cap_(layout.score_cap),
        format_(format),
        name_(name),
        metadata_tokens_(
            MetadataTokens(name, page_bytes, format_.block_bytes(), Format::kBlockTokens)),
        matrices_(std::move(matrices)) {}

  virtual void EncodeItems(Stream& stream, std::span<const EncodeItem> items) = 0;
  virtual void SelectItems(Stream& stream, std::span<SelectItem> items) = 0;

  int64_t head_dim_;
  int64_t group_;  // query heads a KV head
  float score_cap_;
  Format format_;

 private:
  std::string_view name_;
  int64_t metadata_tokens_;
  HeadMatrices matrices_;
  std::vector<EncodeItem> encode_;
  std::vector<SelectItem> select_;
};

}  // namespace litecache::kv
