// A step's sequences in device memory, as every kernel of the step reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

// The slots of one (sequence, layer, offloaded KV head), beside what the slots' pages hold
// (kv/litecache/head_slots_cpu.h). Cached rows lie in slots [cache_begin, cache_begin + used).
struct HeadState {
  int32_t used = 0;
  uint32_t update = 0;       // number of the last update; a slot whose update equals it is attended
  int32_t window_begin = 0;  // where the recent window began at the last update
  int32_t pending = 0;       // a lookup missed and its rows have not arrived
};

// A sequence's tables of pages. Page of block b of list i: pages[table][b * lists + i].
enum TableId : int32_t {
  kResident,  // rows of resident heads (policy full: of all heads), device
  kStore,     // rows of offloaded heads, host memory mapped into the device
  kMetadata,  // of the retriever, device
  kSlots,     // slots of offloaded heads, device
  kLabels,    // [labels a page][group][head_dim] f32 of offloaded heads, device; one list
  kStaging,   // one layer's rows of offloaded heads while a prompt's chunk attends, device
  kScales,    // RowScales of the store's rows where they are apart (RowFormat), device
  kTables
};

struct StepSequence {
  int32_t first_row = 0;  // its first row of the step's activations
  int32_t rows = 0;       // new tokens
  int32_t past = 0;       // tokens before them
  int32_t stored = 0;     // of those, in the host store (policy litecache)
  std::byte* const* pages[kTables] = {};
  HeadState* heads = nullptr;  // [offloaded]
};

// Passed to kernels by value. The arrays' addresses and `capacity` do not change between replays of
// a captured graph; what they hold does. Kernels launch for `capacity` sequences and ignore those
// from *count on.
struct StepView {
  const StepSequence* sequences = nullptr;  // device, [capacity]
  const int32_t* count = nullptr;           // device
  int32_t capacity = 0;
  int32_t max_rows = 0;     // of one sequence of this launch: 1 where all decode
  int32_t max_context = 0;  // past + rows never passes it; sizes grids and scratch
};

// Where one layer's rows of a table lie. KV head h's list is list_of_head[h], -1 where the table
// does not have the head. Row index of token t: t, or with a ring (the slots' fixed part) t < sink
// ? t : sink + t % ring. Row r of a list lies in block r / page_rows, rows first in their page.
struct RowTable {
  TableId table = kResident;
  int32_t lists = 0;
  int32_t page_rows = 0;
  RowFormat format;
  int32_t sink = 0, ring = 0;
  const int32_t* list_of_head = nullptr;  // device, [kv_heads]
  // Where format.scales_apart: table kScales has the scales, in as many lists, this many a page.
  int32_t scales_page_rows = 0;
};

}  // namespace litecache::ops::cuda
