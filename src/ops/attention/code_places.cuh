// Which rows the tiles of code_tiles.cuh have: 16 rows of codes or 8 bf16 rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attended_rows.cuh"
#include "ops/attention/split_problem.cuh"

namespace litecache::ops::cuda::split {

// A pair's rows in tiles of one kind each: its beginning, its cached slots and its end each start
// a new tile.
struct CodePlaces {
  static constexpr bool kChunk = false;
  static constexpr int kBf16Rows = kTileRows / 2;  // in a tile
  struct Place {
    std::byte* const* page = nullptr;  // null: no row
    int32_t at = 0;                    // the slot within the page, or the row's first byte
    bool codes = false;
    uint32_t update = 0;  // the update of attended slots
  };
  struct Row {
    const std::byte* row = nullptr;
    int32_t at = 0;
    bool present = false, codes = false;
    uint32_t update = 0;
  };
  // A lane's row of a tile. The address of its page may still be in flight; it is combined into
  // the row's address when the row is copied, two tiles later.
  struct Lane {
    const std::byte* page = nullptr;
    int32_t at = 0;
    bool present = false, codes = false;
    uint32_t update = 0;

    // before: the result of Arrived on the previous content. The load must depend on it;
    // otherwise the compiler loads into another register first, and the move from there waits for
    // memory. Hence the index, which is zero (addresses are below 2^63), and the unconditional
    // load.
    __device__ void Fetch(const SplitProblem& p, const Place& place, const Row& before) {
      at = place.at;
      present = place.page != nullptr;
      codes = place.codes;
      update = place.update;
      const int64_t zero = before.present ? reinterpret_cast<int64_t>(before.row) >> 63 : 0;
      page = (present ? place.page : reinterpret_cast<std::byte* const*>(p.arrays.q))[zero];
    }
  };
  AttendedRows* of_half;

  // results: of CodeTiles.
  template <class Results>
  __device__ explicit CodePlaces(Results* results)
      : of_half(reinterpret_cast<AttendedRows*>(results->rows[threadIdx.x / kTileRows])) {}
  __device__ void Of(const AttendedRows& rows) {
    const unsigned half = 0xffffu << threadIdx.x % 32 / kTileRows * kTileRows;
    __syncwarp(half);  // all lanes have read the previous ones
    if (threadIdx.x % kTileRows == 0) *of_half = rows;
    __syncwarp(half);
  }
  __device__ static int32_t Blocks(int32_t rows, int32_t of) { return (rows + of - 1) / of; }
  __device__ static uint32_t Tiles(const AttendedRows& rows) {
    if (!rows.cached) return static_cast<uint32_t>(Blocks(rows.total, kBf16Rows));
    return static_cast<uint32_t>(Blocks(rows.first, kBf16Rows) + Blocks(rows.middle, kTileRows) +
                                 Blocks(rows.total - rows.first - rows.middle, kBf16Rows));
  }
  __device__ Place At(uint32_t tile, bool, bool*) const {
    const AttendedRows& rows = *of_half;
    const auto own = static_cast<int32_t>(threadIdx.x % kTileRows);
    auto at = static_cast<int32_t>(tile);
    int32_t first = 0, last = rows.total;
    if (rows.cached) {
      const int32_t beginning = Blocks(rows.first, kBf16Rows);
      const int32_t middle = Blocks(rows.middle, kTileRows);
      last = rows.first;
      if (at >= beginning) {
        at -= beginning;
        if (at < middle) {
          const int32_t slot = at * kTileRows + own;
          if (slot >= rows.middle) return {};
          const int32_t block = rows.per_code_page.Quotient(slot);
          return {rows.code_pages + static_cast<int64_t>(block) * rows.list.lists,
                  slot - block * rows.code_slots, true, rows.update};
        }
        at -= middle;
        first = rows.first + rows.middle;
        last = rows.total;
      }
    }
    const int32_t i = first + at * kBf16Rows + own;
    if (own >= kBf16Rows || i >= last) return {};
    const int32_t row = rows.InList(i), block = rows.list.per_page.Quotient(row);
    return {rows.list.pages + static_cast<int64_t>(block) * rows.list.lists,
            (row - block * rows.list.page_rows) * rows.list.row_bytes, false, 0};
  }
};

}  // namespace litecache::ops::cuda::split
