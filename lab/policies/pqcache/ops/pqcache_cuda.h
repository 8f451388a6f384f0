// Policy pqcache's step on the device: codes of keys, scores from tables, which of the selected
// rows the block cache has, and the blocks that come in.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "lab/policies/pqcache/ops/pq_select.h"
#include "ops/attention/listed_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// The tables of a step's sequences that are used here. A list of kPqRows has the pages of a head's
// window, then those of its cached blocks, then those that its missed rows are staged in.
// kPqCodebooks: one list of pages with centroids f32 [lists][subspaces][clusters][part_dim].
inline constexpr TableId kPqRows = kSlots, kPqCodes = kMetadata, kPqCodebooks = kLabels;

// What the host says of a decode sequence.
struct PqSequence {
  int32_t rows = 0;     // recent rows, and the most that are selected
  int32_t window = 0;   // slots of the window; 0: not indexed, all rows are brought and attended
  int32_t new_row = 0;  // of the new token, in a list of kPqRows
  int32_t cache_begin = 0;  // first row of the cached blocks, and of the staged rows
  int32_t staging_begin = 0;
  int32_t fill = 0;    // 1: the window has to be filled
  int32_t blocks = 0;  // of a layer of `slots`
  int32_t reserved = 0;
  int32_t* slots = nullptr;  // device, [layers][blocks]: a block's slot in the cache, or -1
};

// A block that comes into a sequence's cache.
struct PqAdmission {
  int32_t sequence = 0, block = 0, slot = 0;
};
// A change of a table of slots.
struct PqChange {
  int32_t* where = nullptr;
  int32_t slot = 0;
};

// One layer: constants, and work arrays in device memory. Pairs are sequence * kv_heads + head.
struct PqLayer {
  PqFormat format;
  int32_t layer = 0, kv_heads = 0, group = 0, head_dim = 0;
  int32_t codebooks_a_page = 0;
  int32_t sink = 0, block_tokens = 0;
  RowTable rows, store;
  RowTable codes;                         // page_rows: tokens a page covers
  const PqSequence* sequences = nullptr;  // [capacity]
  const SelectRange* ranges = nullptr;    // [capacity]: k 0 where nothing is selected
  int32_t max_rows = 0;
  int32_t* selected = nullptr;         // [pairs][max_rows]
  int32_t* selected_count = nullptr;   // [pairs]
  int32_t* leading = nullptr;          // [pairs]: rows of the window
  int32_t* listed = nullptr;           // [pairs][max_rows]: the other rows that are attended
  int32_t* listed_count = nullptr;     // [pairs]
  int32_t* moved_positions = nullptr;  // [pairs][max_rows]: rows that are missed
  int32_t* moved_slots = nullptr;      // [pairs][max_rows]: where they are staged
  int32_t* moved_count = nullptr;      // [pairs]
  int32_t* uses = nullptr;             // [capacity][max_blocks]: selected rows, zeros before
  int32_t max_blocks = 0;
  DeviceHeadCounters* counters = nullptr;  // [kv_heads]; of indexed sequences' rows
};

// Codes of the tokens [stored, past) from the rows of the store, or of the new token from its row
// of the window. Sequences that are not indexed have none.
enum class PqKeys { kStored, kNew };
void PqEncode(Stream& stream, const StepView& step, const PqLayer& layer, PqKeys keys);

// Selects of each range by lab/policies/pqcache/ops/pq_select.h's scores, into selected and
// selected_count.
void PqSelect(Stream& stream, const StepView& step, const PqLayer& layer, const MatrixView& q,
              float scale, void* scratch);

// Of the selected rows: where they are attended, which have to be moved, and how often each block
// was asked for.
void PqLookup(Stream& stream, const StepView& step, const PqLayer& layer);

// The new token's row, from its place among the rows to the store.
void PqStoreNew(Stream& stream, const StepView& step, const PqLayer& layer);

// Sink and recent rows of sequences with `fill` from the store into their windows.
void PqFillWindow(Stream& stream, const StepView& step, const PqLayer& layer);

// What the host has decided between two steps, in mapped host memory, and where the device keeps
// it for the step.
struct PqUpdates {
  const int32_t* begins = nullptr;  // [layers + 1]: of each layer's admissions
  const PqAdmission* admissions = nullptr;
  const int32_t* change_count = nullptr;
  const PqChange* changes = nullptr;
  int32_t layers = 0;
  int32_t* device_begins = nullptr;
  PqAdmission* device_admissions = nullptr;
};
// Changes the tables of slots, and brings the lists of admissions to the device.
void PqApply(Stream& stream, const PqUpdates& updates);

// The layer's admissions: whole blocks of all heads from the store into their slots.
void PqAdmit(Stream& stream, const StepView& step, const PqLayer& layer, const PqUpdates& updates);

}  // namespace litecache::ops::cuda
