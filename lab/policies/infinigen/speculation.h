// InfiniGen's speculation: chooses channels of the skewed queries and keys for a prompt, encodes
// partial keys in those channels, and selects the rows for a partial query.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"
#include "kv/heads/profile.h"
#include "kv/retrieve/retrievers.h"
#include "lab/namespaces.h"
#include "lab/policies/infinigen/ops/channel_sums.h"
#include "lab/policies/infinigen/ops/margin_select.h"
#include "lab/policies/infinigen/options.h"
#include "lab/policies/infinigen/shape.h"
#include "ops/common/row_format.h"

namespace litecache::lab::infinigen {

// Data about a sequence's prompt, for layers from the first sparse one on. width:
// Speculation::width().
struct Channels {
  std::vector<double> sums;  // [sparse layers][kv_heads][width]: of |q| + |k|, skewed
  // [sparse layers][kv_heads][rank], ascending; empty: not chosen so far.
  std::vector<int32_t> chosen;
};

// One (sequence, KV head) of a speculated layer.
struct Speculated {
  const Channels* channels = nullptr;
  int64_t sequence = 0;  // items of one sequence are adjacent
  int64_t head = 0;
  const float* q = nullptr;             // [group][head_dim]
  std::byte* const* partial = nullptr;  // pages of its partial keys
  int64_t past = 0;                     // candidates: [0, past), past >= 1
  // Results: valid until the next Select().
  std::span<const int32_t> positions;  // ascending
};

class Speculation {
 public:
  // Without a profile, keys are not skewed. Throws InvalidArgument for a profile without skews.
  Speculation(const Shape& shape, const InfiniGenOptions& options, const Profile* profile);

  int64_t width() const { return width_; }  // of a skew's row: head_dim, padded

  const HeadMatrices& skews() const { return skews_; }  // [head_dim][width]

  // Adds the rows [first, first + rows) of q and k (as in Cache::Attend) to sums [kv_heads][width].
  void AddSums(Stream& stream, int64_t layer, int64_t first, int64_t rows, const MatrixView& q,
               const MatrixView& k, double* sums);
  // The channels with the largest sums; ties go to the lower channel.
  void Choose(Channels* channels) const;

  // Encodes partial keys of tokens [begin, end) of a (layer, KV head) from its stored rows.
  void Encode(Stream& stream, int64_t layer, int64_t head, const Channels& channels,
              const ops::PagedRows& rows, int64_t begin, int64_t end, std::byte* const* partial);

  // Scores all candidates with the partial queries, and selects. All heads of a sequence take the
  // same number of rows: the mean over the heads of the number within alpha of the best, at most
  // the cap.
  void Select(Stream& stream, int64_t layer, float scale, std::span<Speculated> work);

 private:
  // The skew's columns for the chosen channels, [head_dim][basis_stride].
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

}  // namespace litecache::lab::infinigen
