// Cached slots that keep rows as the 8-bit codes they travelled in: half the memory of bf16 rows,
// and half of what attention reads. Sink and ring of a list are rows, in pages of their own before
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/rows/row_format.h"

#ifdef __CUDACC__
#define LC_CODES_INLINE __host__ __device__ __forceinline__
#else
#define LC_CODES_INLINE inline
#endif

namespace litecache::ops::cuda {

// Cached slot begin + i of a list lies in page first_page + i / page_slots of the slots' table. A
// page: [page_slots][K codes (head_dim) | V codes (head_dim)], then of every slot its position
// (int32), the update that last selected it (uint32), and its scales of K and V (float2).
struct CodeSlots {
  RowEncoding encoding = RowEncoding::kBF16;  // kFp8 or kInt8 where page_slots > 0
  int32_t page_slots = 0;  // a multiple of 4; 0: cached slots are rows, as sink and ring
  int32_t begin = 0;       // first cached slot
  int32_t first_page = 0;
};

// Bytes of a slot with what is kept of it.
constexpr int64_t CodeSlotBytes(int64_t head_dim) { return 2 * head_dim + 4 + 4 + 8; }
// Slots a page holds.
constexpr int32_t CodeSlotsIn(int64_t page_bytes, int64_t head_dim) {
  return static_cast<int32_t>(page_bytes / CodeSlotBytes(head_dim) / 4 * 4);
}

// The codes of each group of 16 channels lie in the order that the attention's tensor cores take
// them from shared memory in (attention/code_tiles.cuh): which channel of the group byte `byte` is.
// K: word t holds channels 2t, 2t + 1, 8 + 2t and 8 + 2t + 1.
LC_CODES_INLINE constexpr int32_t KeyChannel(int32_t byte) {
  return 2 * (byte / 4) + byte % 2 + 8 * (byte % 4 / 2);
}
// V: 16-bit unit i holds channels i and 8 + i.
LC_CODES_INLINE constexpr int32_t ValueChannel(int32_t byte) { return byte / 2 + 8 * (byte % 2); }

#ifdef __CUDACC__
// 16 codes in the order of their channels, in that order.
__device__ __forceinline__ uint4 OrderKeyCodes(const uint4& codes) {
  return {__byte_perm(codes.x, codes.z, 0x5410), __byte_perm(codes.x, codes.z, 0x7632),
          __byte_perm(codes.y, codes.w, 0x5410), __byte_perm(codes.y, codes.w, 0x7632)};
}
__device__ __forceinline__ uint4 OrderValueCodes(const uint4& codes) {
  return {__byte_perm(codes.x, codes.z, 0x5140), __byte_perm(codes.x, codes.z, 0x7362),
          __byte_perm(codes.y, codes.w, 0x5140), __byte_perm(codes.y, codes.w, 0x7362)};
}

// A page of them; slots by their place in it.
struct CodePage {
  std::byte* bytes = nullptr;
  int32_t slots = 0, row_bytes = 0;  // CodeSlots::page_slots; 2 head_dim

  __device__ std::byte* Codes(int32_t slot) const {
    return bytes + static_cast<int64_t>(slot) * row_bytes;
  }
  __device__ int32_t* Positions() const {
    return reinterpret_cast<int32_t*>(bytes + static_cast<int64_t>(slots) * row_bytes);
  }
  __device__ uint32_t* Updates() const { return reinterpret_cast<uint32_t*>(Positions() + slots); }
  __device__ float2* Scales() const { return reinterpret_cast<float2*>(Updates() + slots); }
};
#endif

}  // namespace litecache::ops::cuda
