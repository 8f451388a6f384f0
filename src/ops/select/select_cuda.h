// Selects rows for a step's heads on a GPU: one function per retriever.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/select/bounds_select.h"
#include "ops/select/hash_select.h"
#include "ops/select/keys_select.h"
#include "ops/select/projection_select.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// The source of a selection's queries.
struct SelectQuery {
  const MatrixView* q = nullptr;  // [rows, q_heads * head_dim] f32; null: offloaded heads' labels
  float scale = 0;
  float cap = 0;  // as of ExactSelectWork
  // Candidates of n = past + 1 tokens; for a fill, n = past.
  bool fill = false;
};

// Bytes of scratch that a selection needs (scores, histograms).
size_t SelectScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);

// Write the top-k positions (order and ties as in ops/select/selection.h) of every offloaded head
// with refresh == 1 and, unless fill or q is null, of every resident head that is not dense and
// whose candidates do not all fit, to selected/selected_count. If candidates <= k: all of them.
// Heads with nothing to select: count 0. One function per retriever; metadata in the layout of its
// CPU counterpart.
void HashSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                const SelectQuery& query, void* scratch);
void ExactSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, const SelectQuery& query, void* scratch);
void BoundsSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const BoundsFormat& format, const SelectQuery& query,
                  void* scratch);
void ProjectionSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                      const LiteCacheLayer& layer, const ProjectionFormat& format,
                      const float* basis, const SelectQuery& query, void* scratch);
void KeysSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeysFormat& format, const float* rotation,
                const SelectQuery& query, void* scratch);

}  // namespace litecache::ops::cuda
