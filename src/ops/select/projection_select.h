// Selection by scores in a few leading directions of the keys (Loki).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/select/selection.h"

namespace litecache::ops {

// Blocks of 32 tokens, each [pairs][32] of two bf16: components 2 p (lower half) and 2 p + 1 of a
// token; with an odd rank the last upper half is zero.
struct ProjectionFormat {
  static constexpr int64_t kBlockTokens = 32;
  int64_t rank = 0;  // >= 1

  int64_t pairs() const { return (rank + 1) / 2; }
  int64_t token_bytes() const { return 4 * pairs(); }
  int64_t block_bytes() const { return kBlockTokens * token_bytes(); }
  // Floats in a row of a basis: columns from `rank` on are zero.
  int64_t basis_stride() const { return (rank + 15) / 16 * 16; }
};

// component j = sum over c of x[c] * basis[c][j].
struct ProjectionEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;
  const float* basis = nullptr;  // [head_dim][basis_stride]
  PagedMetadata metadata;
};
void ProjectionEncode(Stream& stream, const ProjectionFormat& format, int64_t head_dim,
                      std::span<const ProjectionEncodeWork> work);

// Score: the sum over the group's query heads of softmax(scale * components(q).components(k)) over
// the candidates. selection.scores: [end - begin].
struct ProjectionSelectWork {
  const float* q = nullptr;  // [group][head_dim]
  const float* basis = nullptr;
  float scale = 0;  // > 0
  float cap = 0;    // as of ExactSelectWork
  PagedMetadata metadata;
  Selection selection;
};
void ProjectionSelect(Stream& stream, const ProjectionFormat& format, int64_t group,
                      int64_t head_dim, std::span<ProjectionSelectWork> work);

}  // namespace litecache::ops
