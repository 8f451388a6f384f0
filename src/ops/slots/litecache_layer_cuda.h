// What the operations of policy litecache read and write on a GPU: one layer's (sequence, KV head)
// pairs. A step's decisions are operations over them, each reading the results of the one before;
// the host sees none of these results.
#pragma once

#include <cstdint>

#include "ops/slots/code_slots.h"
#include "ops/slots/slot_windows.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Sizes of policy litecache (kv/litecache/shape.h), as kernels need them.
struct LiteCacheShape {
  int32_t kv_heads = 0, group = 0, head_dim = 0;
  SlotWindows<int32_t> windows;
  int32_t cache_begin = 0;  // first slot of cached rows
  int32_t max_rows = 0;     // the most rows that a head selects: windows.Rows(max_context)
  int32_t labels_a_page = 0;
};

// Counters of a KV head over all sequences, accumulated by the kernels with atomics.
struct DeviceHeadCounters {
  unsigned long long lookups, hits, rows_selected, rows_moved;
  double similarity;
};

// One layer's constants and work arrays in device memory; index of a pair: sequence * kv_heads +
// head.
struct LiteCacheLayer {
  RowTable slots, store, resident;
  CodeSlots codes;  // format of the slots' cached rows, if they are codes
  // Lists and list_of_head; page_rows: tokens that a page covers.
  RowTable metadata;
  const float* importance = nullptr;       // [q_heads]
  const float* tau = nullptr;              // [kv_heads], or of each sequence
  int32_t tau_stride = 0;                  // from one sequence's to the next's; 0: one for all
  const int32_t* dense = nullptr;          // [kv_heads]: attends all rows, selects nothing
  DeviceHeadCounters* counters = nullptr;  // [kv_heads]
  // Work arrays.
  int32_t* refresh = nullptr;          // 1: select the head's rows anew
  int32_t* selected = nullptr;         // [pairs][max_rows] positions, ascending
  int32_t* selected_count = nullptr;   // [pairs]
  int32_t* moved_positions = nullptr;  // [pairs][max_rows]
  int32_t* moved_slots = nullptr;      // [pairs][max_rows]
  int32_t* moved_count = nullptr;      // [pairs]
};

}  // namespace litecache::ops::cuda
