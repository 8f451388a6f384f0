// Which keys to encode into metadata, and where they are.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

// New keys of a step, or, if k is null, those that leave the recent window.
struct KeySource {
  const float* k = nullptr;
  int64_t stride = 0;
};

inline KeySource KeysOf(const LiteCacheShape& shape, const MatrixView* k) {
  if (k == nullptr) return {};
  LC_CHECK(k->dtype == DType::kF32 && k->cols == int64_t{shape.kv_heads} * shape.head_dim,
           "keys of {} columns, {} KV heads, head_dim {}", k->cols, shape.kv_heads, shape.head_dim);
  return {k->Row<const float>(0), k->stride};
}

struct EncodeTarget {
  const StepSequence* sequence = nullptr;
  int32_t head = 0;
  int32_t list = 0;            // list of metadata
  int32_t begin = 0, end = 0;  // positions
};

// False if there is nothing to encode.
__device__ inline bool FindKeys(const StepView& step, const LiteCacheShape& shape,
                                const LiteCacheLayer& layer, const KeySource& keys,
                                int32_t sequence, int32_t head, EncodeTarget* target) {
  if (sequence >= *step.count) return false;
  const StepSequence& s = step.sequences[sequence];
  target->sequence = &s;
  target->head = head;
  target->list = layer.metadata.list_of_head[head];
  target->begin = keys.k != nullptr ? s.past : s.stored;
  target->end = keys.k != nullptr ? s.past + s.rows : s.past + 1 - shape.windows.recent;
  return target->list >= 0 && target->begin < target->end;
}

// Channel c of the key of token `position`.
struct KeyRow {
  const float* f32 = nullptr;
  const __nv_bfloat16* bf16 = nullptr;
  __device__ float operator[](int32_t c) const {
    return f32 != nullptr ? f32[c] : __bfloat162float(bf16[c]);
  }
};
__device__ inline KeyRow KeyOf(const LiteCacheShape& shape, const LiteCacheLayer& layer,
                               const KeySource& keys, const EncodeTarget& target,
                               int32_t position) {
  const StepSequence& s = *target.sequence;
  if (keys.k != nullptr) {
    return {.f32 = keys.k + (int64_t{s.first_row} + position - s.past) * keys.stride +
                   int64_t{target.head} * shape.head_dim};
  }
  const int32_t list = layer.slots.list_of_head[target.head];
  const std::byte* row =
      list >= 0 ? RowOf(s, layer.slots, list, shape.windows.FixedSlot(position))
                : RowOf(s, layer.resident, layer.resident.list_of_head[target.head], position);
  // Rows on the device are bf16 or f32, resident ones in the slots' format.
  if (layer.slots.format.encoding == RowEncoding::kF32) {
    return {.f32 = reinterpret_cast<const float*>(row)};
  }
  return {.bf16 = reinterpret_cast<const __nv_bfloat16*>(row)};
}

// The grid has blocks for the tiles of a sequence's new tokens; decode has few keys, which one
// block handles.
inline dim3 EncodeGrid(const StepView& step, const LiteCacheShape& shape, const KeySource& keys,
                       int32_t tile) {
  // The first token may be within a tile.
  const int32_t tiles = keys.k != nullptr ? (step.max_rows + tile - 1) / tile + 1 : 1;
  return {static_cast<unsigned>(tiles), static_cast<unsigned>(shape.kv_heads),
          static_cast<unsigned>(step.capacity)};
}

}  // namespace litecache::ops::cuda
