// Retriever `loki`: scores in the keys' leading principal components.
#include <algorithm>

#include "kv/profile.h"
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"
#include "ops/projection_select.h"

namespace litecache::kv {
namespace {

int64_t RankOf(const Layout& layout, const KvOptions& options) {
  if (options.loki_rank < 0 || options.loki_rank > layout.head_dim) {
    throw InvalidArgument("loki_rank {}: must be between 1 and head_dim ({}), or 0 for a quarter",
                          options.loki_rank, layout.head_dim);
  }
  if (options.loki_rank > 0) return options.loki_rank;
  return std::max<int64_t>(1, layout.head_dim / 4);
}

// The bases' leading columns, each row padded with zeros.
HeadMatrices MakeBases(const Layout& layout, const ops::ProjectionFormat& format,
                       const Profile* profile) {
  const int64_t d = layout.head_dim;
  HeadMatrices bases(layout, d, format.basis_stride());
  const bool measured = profile != nullptr;
  if (measured && profile->loki.empty()) {
    throw InvalidArgument(
        "the profile has no bases for retriever 'loki': measure them with `litecache profile`");
  }
  LC_CHECK(!measured || static_cast<int64_t>(profile->loki.size()) == bases.count() * d * d,
           "{} values for {} bases of {}", profile->loki.size(), bases.count(), d * d);
  for (int64_t i = 0; i < bases.count(); ++i) {
    for (int64_t c = 0; c < d; ++c) {
      float* row = bases.Of(i) + c * format.basis_stride();
      if (measured) {
        std::copy_n(profile->loki.data() + (i * d + c) * d, format.rank, row);
      } else if (c < format.rank) {
        row[c] = 1;
      }
    }
  }
  return bases;
}

class LokiRetriever final : public Retriever {
 public:
  LokiRetriever(const Layout& layout, const KvOptions& options, const Profile* profile,
                uint64_t page_bytes)
      : head_dim_(layout.head_dim),
        group_(layout.q_heads / layout.kv_heads),
        format_(LokiFormat(layout, options)),
        metadata_tokens_(MetadataTokens("loki", page_bytes, format_.block_bytes(),
                                        ops::ProjectionFormat::kBlockTokens)),
        bases_(MakeBases(layout, format_, profile)) {}

  std::string_view name() const override { return "loki"; }
  int64_t metadata_tokens() const override { return metadata_tokens_; }
  TableUnit metadata_unit() const override {
    return {ops::ProjectionFormat::kBlockTokens, static_cast<uint64_t>(format_.block_bytes())};
  }
  double metadata_bytes_per_token() const override {
    return static_cast<double>(format_.token_bytes());
  }
  double scores_per_token() const override { return static_cast<double>(group_); }
  uint64_t BytesScored(int64_t candidates) const override {
    return static_cast<uint64_t>(candidates * format_.token_bytes());
  }

  std::span<const float> Weights(int64_t layer) const override { return bases_.Layer(layer); }

  void Encode(Stream& stream, std::span<const EncodeWork> work) override {
    encode_.clear();
    for (const EncodeWork& w : work) {
      encode_.push_back({.keys = w.keys,
                         .key_stride = w.key_stride,
                         .begin = w.begin,
                         .count = w.count,
                         .basis = bases_.Of(w.layer, w.head),
                         .metadata = {w.metadata, metadata_tokens_}});
    }
    ops::ProjectionEncode(stream, format_, head_dim_, encode_);
  }

  void Select(Stream& stream, std::span<SelectWork> work) override {
    SelectAs(
        work, items_,
        [&](const SelectWork& w) {
          return ops::ProjectionSelectWork{.q = w.q,
                                           .basis = bases_.Of(w.layer, w.head),
                                           .scale = w.scale,
                                           .metadata = {w.metadata, metadata_tokens_},
                                           .selection = ToSelection(w)};
        },
        [&](std::span<ops::ProjectionSelectWork> items) {
          ops::ProjectionSelect(stream, format_, group_, head_dim_, items);
        });
  }

 private:
  int64_t head_dim_;
  int64_t group_;
  ops::ProjectionFormat format_;
  int64_t metadata_tokens_;
  HeadMatrices bases_;  // [head_dim][basis_stride]
  std::vector<ops::ProjectionEncodeWork> encode_;
  std::vector<ops::ProjectionSelectWork> items_;
};

}  // namespace

ops::ProjectionFormat LokiFormat(const Layout& layout, const KvOptions& options) {
  return {.rank = RankOf(layout, options)};
}

std::unique_ptr<Retriever> CreateLokiRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes) {
  return std::make_unique<LokiRetriever>(layout, options, profile, page_bytes);
}

}  // namespace litecache::kv
