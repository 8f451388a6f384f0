// Retriever `quest`: bounds on the keys of 16 tokens; selects whole blocks.
#include "kv/retrieve/retrievers.h"
#include "ops/select/bounds_select.h"

namespace litecache::kv {
namespace {

using ops::BoundsFormat;

class QuestRetriever final : public Retriever {
 public:
  QuestRetriever(const Layout& layout, uint64_t page_bytes)
      : group_(layout.q_heads / layout.kv_heads),
        format_{.head_dim = layout.head_dim},
        metadata_tokens_(MetadataTokens("quest", page_bytes, format_.group_bytes(),
                                        BoundsFormat::kGroupTokens)) {}

  std::string_view name() const override { return "quest"; }
  int64_t metadata_tokens() const override { return metadata_tokens_; }
  TableUnit metadata_unit() const override {
    return {BoundsFormat::kGroupTokens, static_cast<uint64_t>(format_.group_bytes())};
  }
  bool shares_entries() const override { return true; }
  double metadata_bytes_per_token() const override {
    return static_cast<double>(format_.group_bytes()) /
           static_cast<double>(BoundsFormat::kGroupTokens);
  }
  double scores_per_token() const override { return static_cast<double>(group_) / 16; }
  uint64_t BytesScored(int64_t candidates) const override {
    const int64_t blocks = (candidates + BoundsFormat::kTokens - 1) / BoundsFormat::kTokens;
    return static_cast<uint64_t>(blocks * format_.group_bytes() / BoundsFormat::kGroup);
  }

  void Encode(Stream& stream, std::span<const EncodeWork> work) override {
    encode_.clear();
    for (const EncodeWork& w : work) {
      encode_.push_back({.keys = w.keys,
                         .key_stride = w.key_stride,
                         .begin = w.begin,
                         .count = w.count,
                         .metadata = {w.metadata, metadata_tokens_}});
    }
    ops::BoundsEncode(stream, format_, encode_);
  }

  void Select(Stream& stream, std::span<SelectWork> work) override {
    SelectAs(
        work, items_,
        [&](const SelectWork& w) {
          return ops::BoundsSelectWork{
              .q = w.q, .metadata = {w.metadata, metadata_tokens_}, .selection = ToSelection(w)};
        },
        [&](std::span<ops::BoundsSelectWork> items) {
          ops::BoundsSelect(stream, format_, group_, items);
        });
  }

 private:
  int64_t group_;
  BoundsFormat format_;
  int64_t metadata_tokens_;
  std::vector<ops::BoundsEncodeWork> encode_;
  std::vector<ops::BoundsSelectWork> items_;
};

}  // namespace

std::unique_ptr<Retriever> CreateQuestRetriever(const Layout& layout, uint64_t page_bytes) {
  return std::make_unique<QuestRetriever>(layout, page_bytes);
}

}  // namespace litecache::kv
