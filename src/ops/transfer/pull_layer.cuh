// Reads a layer's rows from the store, by the warps of a kernel: shared by pulls of one layer and
// of a whole step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/slots/litecache_layer_cuda.h"
#include "ops/slots/litecache_pair.cuh"
#include "ops/transfer/move_rows.cuh"
#include "ops/transfer/pull_step_cuda.h"

namespace litecache::ops::cuda {

// Rows in a warp's piece. While a piece is in flight, the lanes look up the rows of the next one,
// each lane one row: three dependent loads, which take as long as a row's way over the link.
constexpr int kPieceRows = 16;
static_assert(2 * kPieceRows == 32);
struct PieceRows {
  std::byte* addresses[2 * kPieceRows];  // of sources, then of targets
  float2 scales[kPieceRows];             // of rows with scales apart
};

// What is done to rows: copied, in units of 16 bytes; copied as 8-bit codes, with their scales;
// dequantized from 8-bit codes with a head_dim that is a multiple of 16; any other conversion.
enum class Pulled { kPlain, kCodes, kFp8, kInt8, kOther };
// Loads of 16 codes that a lane has in flight: a piece of rows of 128.
constexpr int kCodesInFlight = 8;

// All warps share one list of pieces, pair after pair, so that the rows of one head are read one
// after another: scattered reads reduce the rate of the link and of everything else (to a third,
// lab/notes/gpu/litecache.md). store, slots, codes: from any layer, their list_of_head is not used.
// first: the warp's first piece, counted from the layer's first; after the call, from the next
// layer's. own: the warp's shared memory.
//
// Lists are read bypassing the L1 cache: other SMs may write them while the kernel runs.
template <Pulled kPulled>
__device__ __forceinline__ void PullLayer(const StepView& step, const LiteCacheShape& shape,
                                          const RowTable& store, const RowTable& slots,
                                          const CodeSlots& codes, const PulledLayer& layer,
                                          int32_t warps, int32_t* first, PieceRows& own) {
  const int32_t lane = threadIdx.x % 32;
  constexpr bool kKept = kPulled == Pulled::kCodes;  // keep codes
  constexpr bool kExpanded = kPulled == Pulled::kFp8 || kPulled == Pulled::kInt8;
  const auto d = static_cast<int32_t>(store.format.head_dim);
  const int32_t most =
      kKept || kExpanded ? kCodesInFlight * CodeRowsABatch(d) : RowsAtOnce(store.format);
  const int32_t at_once = min(most, kPieceRows);
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
      float2 next_scales = {};
      float2* next_place = nullptr;  // for kept codes: where a target's scales go
      const auto address_of = [&](int32_t piece) -> std::byte* {
        const int32_t row = piece * kPieceRows + lane % kPieceRows;
        if (row >= count) return nullptr;
        if (lane >= kPieceRows) {
          const int32_t slot = __ldcg(places + row);
          if constexpr (kKept) {
            const auto [page, in_page] = CodesOf(s, slots, codes, slots_list, slot);
            next_place = page.Scales() + in_page;
            return page.Codes(in_page);
          } else {
            return RowOf(s, slots, slots_list, slot);
          }
        }
        const int32_t position = __ldcg(positions + row);
        if (kPulled != Pulled::kPlain && store.format.scales_apart) {
          next_scales = __ldcg(ScalesOf(s, store, stored_list, position));
        }
        return RowOf(s, store, stored_list, position);
      };
      int32_t piece = *first;
      std::byte* next = address_of(piece);
      for (; piece < pieces; piece += warps) {
        __syncwarp();  // all lanes have read those of the previous piece
        own.addresses[lane] = next;
        if constexpr (kKept) {
          // Lane i has row i's scales, lane kPieceRows + i their target.
          const float k = __shfl_sync(kFullMask, next_scales.x, lane % kPieceRows);
          const float v = __shfl_sync(kFullMask, next_scales.y, lane % kPieceRows);
          if (lane >= kPieceRows && next != nullptr) *next_place = {k, v};
        } else if constexpr (kPulled != Pulled::kPlain) {
          if (lane < kPieceRows) own.scales[lane] = next_scales;
        }
        __syncwarp();
        if (piece + warps < pieces) next = address_of(piece + warps);
        const int32_t rows = min(kPieceRows, count - piece * kPieceRows);
        for (int32_t row = 0; row < rows; row += at_once) {
          const auto source = [&](int32_t i) { return own.addresses[row + i]; };
          const auto target = [&](int32_t i) { return own.addresses[kPieceRows + row + i]; };
          const auto scales = [&](int32_t i) { return own.scales[row + i]; };
          const int32_t some = min(at_once, rows - row);
          if constexpr (kPulled == Pulled::kPlain) {
            CopyPlain<uint4>(some, static_cast<int32_t>(RowBytes(store.format)) / 16, source,
                             target);
          } else if constexpr (kKept) {
            CopyCodes<kCodesInFlight>(some, d, source, target);
          } else if constexpr (kExpanded) {
            constexpr RowEncoding kEncoding =
                kPulled == Pulled::kFp8 ? RowEncoding::kFp8 : RowEncoding::kInt8;
            ExpandRows<kEncoding, kCodesInFlight>(some, d, slots.format.encoding, source, scales,
                                                  target);
          } else {
            MoveSome(some, store.format, slots.format, source, scales, target);
          }
        }
      }
      *first = piece - pieces;
    }
  }
}

// Calls launch.operator()<Pulled>() with the conversion between a layer's formats.
template <class Launch>
void ForPulled(const LiteCacheLayer& layer, const Launch& launch) {
  const RowFormat &from = layer.store.format, &to = layer.slots.format;
  CheckMove(from, to);
  if (layer.codes.page_slots > 0) {
    LC_CHECK(from.scales_apart && from.encoding == layer.codes.encoding && from.head_dim % 16 == 0,
             "slots of {} codes, a store of {}, head_dim {}", Name(layer.codes.encoding),
             Name(from.encoding), from.head_dim);
    launch.template operator()<Pulled::kCodes>();
  } else if (from.encoding == to.encoding && from.row_bytes() % 16 == 0) {
    launch.template operator()<Pulled::kPlain>();
  } else if (from.scales_apart && from.head_dim % 16 == 0) {
    if (from.encoding == RowEncoding::kFp8) {
      launch.template operator()<Pulled::kFp8>();
    } else {
      launch.template operator()<Pulled::kInt8>();
    }
  } else {
    launch.template operator()<Pulled::kOther>();
  }
}

}  // namespace litecache::ops::cuda
