// A step of policy pqcache on the device: codes of keys, scores from tables, the selected rows
// found in the block cache, and admitted blocks.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/ops/pq_select.h"
#include "ops/attention/listed_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::lab::ops::cuda {

// The tables of a step's sequences used here. A list of kPqRows has the pages of a head's window,
// then those of its cached blocks, then those in which its missed rows are staged. kPqCodebooks:
// one list of pages with centroids f32 [lists][subspaces][clusters][part_dim].
inline constexpr TableId kPqRows = kSlots, kPqCodes = kMetadata, kPqCodebooks = kLabels;

// The host's parameters of a decode sequence.
struct PqSequence {
  int32_t rows = 0;     // number of recent rows, and maximum number of selected rows
  int32_t window = 0;   // slots of the window; 0: not indexed, all rows are fetched and attended
  int32_t new_row = 0;  // index of the new token's row in a list of kPqRows
  int32_t cache_begin = 0;  // first row of the cached blocks and of the staged rows
  int32_t staging_begin = 0;
  int32_t fill = 0;    // 1: the window must be filled
  int32_t blocks = 0;  // per layer in `slots`
  int32_t reserved = 0;
  int32_t* slots = nullptr;  // device, [layers][blocks]: a block's slot in the cache, or -1
};

// A block admitted to a sequence's cache.
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
  RowTable codes;                         // page_rows: tokens per page
  const PqSequence* sequences = nullptr;  // [capacity]
  const SelectRange* ranges = nullptr;    // [capacity]: k is 0 if nothing is selected
  int32_t max_rows = 0;
  int32_t* selected = nullptr;         // [pairs][max_rows]
  int32_t* selected_count = nullptr;   // [pairs]
  int32_t* leading = nullptr;          // [pairs]: rows of the window
  int32_t* listed = nullptr;           // [pairs][max_rows]: the other attended rows
  int32_t* listed_count = nullptr;     // [pairs]
  int32_t* moved_positions = nullptr;  // [pairs][max_rows]: missed rows
  int32_t* moved_slots = nullptr;      // [pairs][max_rows]: their staging slots
  int32_t* moved_count = nullptr;      // [pairs]
  // [capacity][max_blocks]: number of selected rows, initially zero.
  int32_t* uses = nullptr;
  int32_t max_blocks = 0;
  DeviceHeadCounters* counters = nullptr;  // [kv_heads]; for rows of indexed sequences
};

// Encodes the tokens [stored, past) from the rows of the store, or the new token from its row in
// the window. Sequences that are not indexed have no codes.
enum class PqKeys { kStored, kNew };
void PqEncode(Stream& stream, const StepView& step, const PqLayer& layer, PqKeys keys);

// Selects rows of each range by the scores of lab/policies/pqcache/ops/pq_select.h, into selected
// and selected_count.
void PqSelect(Stream& stream, const StepView& step, const PqLayer& layer, const MatrixView& q,
              float scale, void* scratch);

// For the selected rows: where they are attended, which of them must be transferred, and the number
// of uses of each block.
void PqLookup(Stream& stream, const StepView& step, const PqLayer& layer);

// Copies the new token's row from its position among the rows to the store.
void PqStoreNew(Stream& stream, const StepView& step, const PqLayer& layer);

// Copies the sink and recent rows of sequences with `fill` from the store into their windows.
void PqFillWindow(Stream& stream, const StepView& step, const PqLayer& layer);

// The host's decisions between two steps, in mapped host memory, and the device's copy for the
// step.
struct PqUpdates {
  const int32_t* begins = nullptr;  // [layers + 1]: start of each layer's admissions
  const PqAdmission* admissions = nullptr;
  const int32_t* change_count = nullptr;
  const PqChange* changes = nullptr;
  int32_t layers = 0;
  int32_t* device_begins = nullptr;
  PqAdmission* device_admissions = nullptr;
};
// Updates the tables of slots, and copies the lists of admissions to the device.
void PqApply(Stream& stream, const PqUpdates& updates);

// Copies the layer's admissions, whole blocks of all heads, from the store into their slots.
void PqAdmit(Stream& stream, const StepView& step, const PqLayer& layer, const PqUpdates& updates);

}  // namespace litecache::lab::ops::cuda
