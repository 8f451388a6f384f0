// Retriever `exact`: computes every candidate's attention score. It has no metadata and reads every
// key; the other retrievers' recall is measured against it.
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"
#include "ops/select/exact_select.h"

namespace litecache::kv {
namespace {

class ExactRetriever final : public Retriever {
 public:
  ExactRetriever(const Layout& layout, const KvOptions& options)
      : group_(layout.q_heads / layout.kv_heads), score_cap_(layout.score_cap) {
    const int64_t d = layout.head_dim;
    if (options.host_rows == "fp8" || options.host_rows == "int8") {
      key_bytes_ = d + 4;
    } else if (options.host_rows == "int4") {
      key_bytes_ = static_cast<int64_t>(ops::RowFormat{ops::RowEncoding::kInt4, d}.row_bytes()) / 2;
    } else {
      key_bytes_ = d * static_cast<int64_t>(SizeOf(layout.dtype));
    }
  }

  std::string_view name() const override { return "exact"; }
  int64_t metadata_tokens() const override { return 0; }
  double metadata_bytes_per_token() const override { return 0; }
  double scores_per_token() const override { return static_cast<double>(group_); }
  uint64_t BytesScored(int64_t candidates) const override {
    return static_cast<uint64_t>(candidates * key_bytes_);
  }
  void Encode(Stream&, std::span<const EncodeWork>) override {}

  void Select(Stream& stream, std::span<SelectWork> work) override {
    SelectAs(
        work, items_,
        [&](const SelectWork& w) {
          return ops::ExactSelectWork{.q = w.q,
                                      .scale = w.scale,
                                      .cap = score_cap_,
                                      .rows = w.rows,
                                      .selection = ToSelection(w)};
        },
        [&](std::span<ops::ExactSelectWork> items) { ops::ExactSelect(stream, group_, items); });
  }

 private:
  int64_t group_;
  float score_cap_;
  int64_t key_bytes_;  // of one row
  std::vector<ops::ExactSelectWork> items_;
};

}  // namespace

std::unique_ptr<Retriever> CreateExactRetriever(const Layout& layout, const KvOptions& options) {
  return std::make_unique<ExactRetriever>(layout, options);
}

}  // namespace litecache::kv
