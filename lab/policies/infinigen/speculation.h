// InfiniGen's speculation: which channels of the skewed queries and keys matter for a prompt, the
// partial keys in those channels, and the rows a partial query asks for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"
#include "kv/heads/profile.h"
#include "kv/retrieve/retrievers.h"
#include "lab/policies/infinigen/ops/channel_sums.h"
#include "lab/policies/infinigen/ops/margin_select.h"
#include "lab/policies/infinigen/options.h"
#include "lab/policies/infinigen/shape.h"
#include "ops/common/row_format.h"

namespace litecache::kv::infinigen {

// What is known of a sequence's prompt, layers from the first sparse one on. width:
// Speculation::width().
struct Channels {
  std::vector<double> sums;     // [sparse layers][kv_heads][width]: of |q| + |k|, skewed
  std::vector<int32_t> chosen;  // [sparse layers][kv_heads][rank], ascending; empty: not yet
};

// One (sequence, KV head) of a layer that is speculated for.
struct Speculated {
  const Channels* channels = nullptr;
  int64_t sequence = 0;  // rows of one sequence come together
  int64_t head = 0;
  const float* q = nullptr;             // [group][head_dim]
  std::byte* const* partial = nullptr;  // pages of its partial keys
  int64_t past = 0;                     // candidates: [0, past), past >= 1
  // Results: valid until the next Select().
  std::span<const int32_t> positions;  // ascending
};

class Speculation {
 public:
  // Without a profile keys are not skewed. Throws InvalidArgument for one without skews.
  Speculation(const Shape& shape, const InfiniGenOptions& options, const Profile* profile);

  int64_t width() const { return width_; }  // of a skew's row: head_dim, padded

  const HeadMatrices& skews() const { return skews_; }  // [head_dim][width]

  // sums [kv_heads][width] += of the rows [first, first + rows) of q and k (as Cache::Attend).
  void AddSums(Stream& stream, int64_t layer, int64_t first, int64_t rows, const MatrixView& q,
               const MatrixView& k, double* sums);
  // The channels with the largest sums; equal ones: the lower.
  void Choose(Channels* channels) const;

  // Partial keys of tokens [begin, end) of a (layer, KV head) from its stored rows.
  void Encode(Stream& stream, int64_t layer, int64_t head, const Channels& channels,
              const ops::PagedRows& rows, int64_t begin, int64_t end, std::byte* const* partial);

  // Scores all candidates with the partial queries, and selects. A sequence's heads take equally
  // many rows: the mean of how many each has within alpha of its best, at most the cap.
  void Select(Stream& stream, int64_t layer, float scale, std::span<Speculated> work);

 private:
  // The skew's columns of the chosen channels, [head_dim][basis_stride].
  void GatherBasis(int64_t layer, int64_t head, const Channels& channels, float* basis) const;

  const Shape& shape_;
  int64_t width_;
  float alpha_;
  HeadMatrices skews_;  // [head_dim][width]
  // Scratch.
  std::vector<ops::ChannelSumsWork> sums_;
  std::vector<float> keys_, bases_, margins_;
  std::vector<std::byte*> key_pages_;
  std::vector<ops::ConvertWork> converts_;
  std::vector<ops::ProjectionEncodeWork> encodes_;
  std::vector<ops::MarginScoreWork> scores_;
  std::vector<ops::TopRowsWork> tops_;
  std::vector<int32_t> positions_;
};

}  // namespace litecache::kv::infinigen
