// Cached slots that keep rows as the 8-bit codes in which they were transferred: half the memory of
// bf16 rows, and half of what attention reads. A list's sink and ring hold rows, in separate pages
// before those of codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/host_device.h"
#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

// Cached slot begin + i of a list is in page first_page + i / page_slots of the slots' table. A
// page: [page_slots][K codes (head_dim) | V codes (head_dim)], then for every slot its position
// (int32), the update that last selected it (uint32), and its scales of K and V (float2).
struct CodeSlots {
  RowEncoding encoding = RowEncoding::kBF16;  // kFp8 or kInt8 if page_slots > 0
  int32_t page_slots = 0;  // a multiple of 4; 0: cached slots hold rows, like sink and ring
  int32_t begin = 0;       // first cached slot
  int32_t first_page = 0;
};

// Bytes of a slot with its position, update and scales.
constexpr int64_t CodeSlotBytes(int64_t head_dim) { return 2 * head_dim + 4 + 4 + 8; }

// If pages consist of tiles of kCodeTile slots of such heads, the 16-byte chunks of a slot's codes
// are arranged as in shared memory, so that attention copies a tile as one run of bytes.
inline constexpr int32_t kCodeTile = 16;
LC_HOST_DEVICE constexpr bool WholeCodeTiles(int64_t head_dim, int32_t page_slots) {
  return (head_dim == 64 || head_dim == 128) && page_slots % kCodeTile == 0;
}
// Slots a page holds.
constexpr int32_t CodeSlotsIn(int64_t page_bytes, int64_t head_dim) {
  const auto slots = static_cast<int32_t>(page_bytes / CodeSlotBytes(head_dim));
  const int32_t tiles = slots / kCodeTile * kCodeTile;
  return tiles > 0 && WholeCodeTiles(head_dim, tiles) ? tiles : slots / 4 * 4;
}
// Which of a slot's chunks is at place `chunk` of whole tiles, and vice versa: eight slots' chunks
// of one place are in different banks (common/tensor_core.cuh, SwizzledOffset).
LC_HOST_DEVICE constexpr int32_t TileChunk(int32_t slot, int32_t chunk) {
  return chunk ^ (slot & 7);
}

// The codes of each group of 16 channels are in the order in which the attention's tensor cores
// read them from shared memory (attention/code_tiles.cuh): returns which channel of the group byte
// `byte` is. K: word t holds channels 2t, 2t + 1, 8 + 2t and 8 + 2t + 1.
LC_HOST_DEVICE constexpr int32_t KeyChannel(int32_t byte) {
  return 2 * (byte / 4) + byte % 2 + 8 * (byte % 4 / 2);
}
// V: 16-bit unit i holds channels i and 8 + i.
LC_HOST_DEVICE constexpr int32_t ValueChannel(int32_t byte) { return byte / 2 + 8 * (byte % 2); }

#ifdef __CUDACC__
// Rearranges 16 codes from the order of their channels into that order.
__device__ __forceinline__ uint4 OrderKeyCodes(const uint4& codes) {
  return {__byte_perm(codes.x, codes.z, 0x5410), __byte_perm(codes.x, codes.z, 0x7632),
          __byte_perm(codes.y, codes.w, 0x5410), __byte_perm(codes.y, codes.w, 0x7632)};
}
__device__ __forceinline__ uint4 OrderValueCodes(const uint4& codes) {
  return {__byte_perm(codes.x, codes.z, 0x5140), __byte_perm(codes.x, codes.z, 0x7362),
          __byte_perm(codes.y, codes.w, 0x5140), __byte_perm(codes.y, codes.w, 0x7362)};
}

// Chunk `chunk` of CodePage::Codes.
__device__ __forceinline__ uint4* CodeChunk(std::byte* codes, int32_t chunk) {
  const auto turned = reinterpret_cast<uintptr_t>(codes);
  return reinterpret_cast<uint4*>(turned & ~uintptr_t{7}) +
         TileChunk(static_cast<int32_t>(turned & 7), chunk);
}

// A page of code slots; slots are numbered within the page.
struct CodePage {
  std::byte* bytes = nullptr;
  int32_t slots = 0, row_bytes = 0;  // CodeSlots::page_slots; 2 head_dim

  // A slot's codes for CodeChunk: their address, with the rotation of their chunks in its lowest
  // bits, which are free.
  __device__ std::byte* Codes(int32_t slot) const {
    const int32_t turn = WholeCodeTiles(row_bytes / 2, slots) ? slot & 7 : 0;
    return bytes + static_cast<int64_t>(slot) * row_bytes + turn;
  }
  __device__ int32_t* Positions() const {
    return reinterpret_cast<int32_t*>(bytes + static_cast<int64_t>(slots) * row_bytes);
  }
  __device__ uint32_t* Updates() const { return reinterpret_cast<uint32_t*>(Positions() + slots); }
  __device__ float2* Scales() const { return reinterpret_cast<float2*>(Updates() + slots); }
};
#endif

}  // namespace litecache::ops::cuda
