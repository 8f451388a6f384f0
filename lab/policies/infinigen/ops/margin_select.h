// The distance of every row's score from the best one, computed in a few directions of the keys:
// InfiniGen's speculation, which counts rows before it selects them.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/select/projection_select.h"
#include "ops/select/selection.h"

namespace litecache::lab::ops {

// score_j(t) = scale * components(q_j).components(t), as in ProjectionSelectWork; margin(t) = the
// largest over the group's query heads j of score_j(t) - (the best score_j of the candidates), so
// that 0 is the best row of one of the heads.
struct MarginScoreWork {
  const float* q = nullptr;      // [group][head_dim]
  const float* basis = nullptr;  // [head_dim][format.basis_stride()]
  float scale = 0;               // > 0
  float alpha = 0;               // >= 0
  PagedMetadata metadata;        // as written by ProjectionEncode
  int64_t begin = 0, end = 0;    // candidates, begin < end
  float* margins = nullptr;      // result [end - begin]
  int64_t above = 0;             // result: candidates whose margin exceeds -alpha
};
// Results depend neither on the number of threads nor on other work.
void MarginScore(Stream& stream, const ProjectionFormat& format, int64_t group, int64_t head_dim,
                 std::span<MarginScoreWork> work);

// Selects the best of scores[t - selection.begin] that another operation has computed.
struct TopRowsWork {
  const float* scores = nullptr;
  Selection selection;
};
void SelectTopRows(Stream& stream, std::span<TopRowsWork> work);

}  // namespace litecache::lab::ops
