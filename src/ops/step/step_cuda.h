// A step's sequences in device memory, as every kernel of the step reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

// The slots of one (sequence, layer, offloaded KV head), besides the contents of the slots' pages
// (kv/litecache/head_slots_cpu.h). Cached rows are in slots [cache_begin, cache_begin + used).
struct HeadState {
  int32_t used = 0;
  uint32_t update = 0;       // number of the last update; slots with this number are attended
  int32_t window_begin = 0;  // where the recent window began at the last update
  int32_t pending = 0;       // a lookup missed and its rows have not been transferred
  int32_t next_victim = 0;   // HeadSlots::next_victim
};

// A sequence's page tables. The page of block b of list i is pages[table][b * lists + i].
enum TableId : int32_t {
  kResident,  // rows of resident heads (policy full: of all heads), device
  kStore,     // rows of offloaded heads, host memory mapped into the device
  kMetadata,  // of the retriever, device
  kSlots,     // slots of offloaded heads, device
  kLabels,    // [labels per page][group][head_dim] f32 of offloaded heads, device; one list
  kStaging,   // one layer's rows of offloaded heads while a prompt chunk attends, device
  kScales,    // RowScales of the store's rows if they are kept apart (RowFormat), device
  kTables
};

struct StepSequence {
  int32_t first_row = 0;  // its first row in the step's activations
  int32_t rows = 0;       // new tokens
  int32_t past = 0;       // tokens before them
  int32_t stored = 0;     // how many of them are in the host store (policy litecache)
  std::byte* const* pages[kTables] = {};
  HeadState* heads = nullptr;  // [offloaded]
};

// Passed to kernels by value. The arrays' addresses and `capacity` do not change between replays of
// a captured graph; the contents do. Kernels are launched for `capacity` sequences and ignore those
// from *count on.
struct StepView {
  const StepSequence* sequences = nullptr;  // device, [capacity]
  const int32_t* count = nullptr;           // device
  int32_t capacity = 0;
  int32_t max_rows = 0;     // of one sequence of this launch: 1 if all decode
  int32_t max_context = 0;  // upper bound of past + rows; determines grids and scratch
};

// The location of one layer's rows in a table. KV head h's list is list_of_head[h], -1 if the head
// is not in the table. Row index of token t: t, or with a ring (the slots' fixed part) t < sink ? t
// : sink + t % ring. Row r of a list is in block r / page_rows; rows come first in their page.
struct RowTable {
  TableId table = kResident;
  int32_t lists = 0;
  int32_t page_rows = 0;
  RowFormat format;
  int32_t sink = 0, ring = 0;
  const int32_t* list_of_head = nullptr;  // device, [kv_heads]
  // If format.scales_apart: table kScales has the scales, in equally many lists, this many per
  // page.
  int32_t scales_page_rows = 0;
};

}  // namespace litecache::ops::cuda
