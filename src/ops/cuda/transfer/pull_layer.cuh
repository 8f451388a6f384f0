// A layer's rows out of the store, by the warps of a kernel: what pulls of one layer and of a whole
// step share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/litecache/litecache.h"
#include "ops/cuda/step/lite_pair.cuh"
#include "ops/cuda/transfer/move_rows.cuh"
#include "ops/cuda/transfer/pull_step.h"

namespace litecache::ops::cuda {

// A warp's piece. Its lanes find where the rows of the next one lie, each for one row, while those
// of this one travel: three loads that wait for each other, as long as a row's way over the link.
constexpr int kPieceRows = 16;
static_assert(2 * kPieceRows == 32);
using PieceAddresses = std::byte * [2 * kPieceRows];  // sources, targets

// All warps share one list of pieces, pair after pair, so that the rows of one head are read one
// after another: scattered reads starve the link and everything else (hardware.md's measure: a
// third of its rate). kPlain: rows are copied, in units of 16 bytes. store, slots: of any layer,
// their list_of_head is not used. first: the warp's first piece, counted from the layer's; after
// the call from the next one's. own: the warp's, shared memory.
//
// Lists pass by the L1 cache: other SMs may write them while the kernel runs.
template <bool kPlain>
__device__ __forceinline__ void PullLayer(const StepView& step, const LiteShape& shape,
                                          const RowTable& store, const RowTable& slots,
                                          const PulledLayer& layer, int32_t warps, int32_t* first,
                                          PieceAddresses& own) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t at_once = min(RowsAtOnce(store.format), kPieceRows);
  const int32_t pairs = *step.count * shape.kv_heads;
  for (int32_t base = 0; base < pairs; base += 32) {
    int32_t of_lane = 0;
    if (base + lane < pairs && __ldcg(layer.refresh + base + lane) == 1) {
      of_lane = __ldcg(layer.moved_count + base + lane);
    }
    for (unsigned busy = __ballot_sync(kFullMask, of_lane > 0); busy != 0; busy &= busy - 1) {
      const int from_lane = __ffs(static_cast<int>(busy)) - 1;
      const int32_t count = __shfl_sync(kFullMask, of_lane, from_lane);
      const int32_t pieces = (count + kPieceRows - 1) / kPieceRows;
      if (*first >= pieces) {
        *first -= pieces;
        continue;
      }
      const int32_t pair = base + from_lane;
      const int32_t head = pair % shape.kv_heads;
      const StepSequence& s = step.sequences[pair / shape.kv_heads];
      const int32_t stored_list = layer.list_in_store[head];
      const int32_t slots_list = layer.list_in_slots[head];
      const int32_t* positions = layer.moved_positions + int64_t{pair} * shape.max_rows;
      const int32_t* places = layer.moved_slots + int64_t{pair} * shape.max_rows;
      const auto address_of = [&](int32_t piece) -> std::byte* {
        const int32_t row = piece * kPieceRows + lane % kPieceRows;
        if (row >= count) return nullptr;
        return lane < kPieceRows ? RowOf(s, store, stored_list, __ldcg(positions + row))
                                 : RowOf(s, slots, slots_list, __ldcg(places + row));
      };
      int32_t piece = *first;
      std::byte* next = address_of(piece);
      for (; piece < pieces; piece += warps) {
        __syncwarp();  // all have read those of the piece before
        own[lane] = next;
        __syncwarp();
        if (piece + warps < pieces) next = address_of(piece + warps);
        const int32_t rows = min(kPieceRows, count - piece * kPieceRows);
        for (int32_t row = 0; row < rows; row += at_once) {
          const auto source = [&](int32_t i) { return own[row + i]; };
          const auto target = [&](int32_t i) { return own[kPieceRows + row + i]; };
          const int32_t some = min(at_once, rows - row);
          if constexpr (kPlain) {
            CopyPlain<uint4>(some, static_cast<int32_t>(RowBytes(store.format)) / 16, source,
                             target);
          } else {
            MoveSome(some, store.format, slots.format, source, target);
          }
        }
      }
      *first = piece - pieces;
    }
  }
}

// Whether PullLayer<true> serves these formats.
inline bool IsPlainPull(const RowFormat& from, const RowFormat& to) {
  return from.encoding == to.encoding && from.row_bytes() % 16 == 0;
}

}  // namespace litecache::ops::cuda
