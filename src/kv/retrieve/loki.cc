// Retriever `loki`: scores in the keys' leading principal components.
#include <algorithm>

#include "kv/heads/profile.h"
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"
#include "ops/select/projection_select.h"

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

// The first columns of the bases, with each row padded with zeros.
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

struct ProjectionOperations {
  using Format = ops::ProjectionFormat;
  using EncodeItem = ops::ProjectionEncodeWork;
  using SelectItem = ops::ProjectionSelectWork;
  static constexpr auto kEncodeMatrix = &EncodeItem::basis;
  static constexpr auto kSelectMatrix = &SelectItem::basis;
};

// Matrices are [head_dim][basis_stride].
class LokiRetriever final : public MatrixRetriever<ProjectionOperations> {
 public:
  LokiRetriever(const Layout& layout, const KvOptions& options, const Profile* profile,
                uint64_t page_bytes)
      : MatrixRetriever("loki", layout, LokiFormat(layout, options), page_bytes,
                        MakeBases(layout, LokiFormat(layout, options), profile)) {}

  double scores_per_token() const override { return static_cast<double>(group_); }

 protected:
  void EncodeItems(Stream& stream, std::span<const ops::ProjectionEncodeWork> items) override {
    ops::ProjectionEncode(stream, format_, head_dim_, items);
  }
  void SelectItems(Stream& stream, std::span<ops::ProjectionSelectWork> items) override {
    ops::ProjectionSelect(stream, format_, group_, head_dim_, items);
  }
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
