// Transfers with work on the host (engines cpu-push and copy): the device lists the rows it needs,
// the host gathers them into chunks, and the device puts these into the slots.
//
// Chunk numbers continue from one transfer to the next, and every flag is the number of a chunk
// plus one: nothing is reset between transfers or replays of a graph. Flags that one side writes
// and the other polls are 64-bit words, released and acquired at system scope.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "ops/common/row_format.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

struct float2;  // CUDA's, whose headers the host's part of a transfer does not need

namespace litecache::ops::cuda {

// The request of the last transfer.
struct TransferRequest {
  uint64_t first_chunk = 0;  // its first chunk; row i is in chunk first_chunk + i / chunk_rows
  uint64_t rows = 0;
  uint64_t chunk_rows = 0;
  uint64_t row_bytes = 0;
  const uint64_t* sources = nullptr;  // [rows] addresses in the host store
};

// A wait of the device that exceeded its deadline.
struct TransferFault {
  uint64_t set = 0;  // written last
  uint64_t layer = 0;
  uint64_t chunk = 0;
  uint64_t seen = 0;  // value of the chunk's flag at that time
};

// Written by the device, in mapped host memory, initially zero. Polled words have a cache line of
// their own.
struct TransferMailbox {
  alignas(64) uint64_t asked = 0;       // chunks before this number have been requested
  alignas(64) TransferRequest request;  // for chunks [first_chunk, asked); written before `asked`
  alignas(64) TransferFault fault;
};

// The device's own counters, in its memory, initially zero.
struct TransferState {
  unsigned long long end_chunk = 0;    // chunks requested so far
  unsigned long long first_chunk = 0;  // of this transfer
  unsigned long long rows = 0;         // of this transfer
  unsigned long long taken = 0;        // chunks of this transfer that a block drains or has drained
  uint32_t arrived = 0;                // blocks that have listed their rows
  // A wait has exceeded its deadline: transfers do nothing until this is cleared.
  uint32_t fault = 0;
};

// The rows of a transfer. Addresses do not change between replays of a graph.
struct TransferList {
  uint64_t* sources = nullptr;  // [capacity] mapped host memory: the rows' addresses in the store
  uint64_t* targets = nullptr;  // [capacity] device memory: their slots
  float2* scales = nullptr;     // [capacity] device memory: RowScales, if they are apart
  int64_t capacity = 0;         // pairs * LiteCacheShape.max_rows
  int32_t chunk_rows = 0;
  TransferState* state = nullptr;
  TransferMailbox* mailbox = nullptr;
};

// Words between two flags, so that each has its own cache line.
inline constexpr int64_t kFlagStride = 8;

// The buffer that chunks arrive in: chunk c at place c % count. Rows of a chunk are adjacent.
struct TransferRing {
  // Mapped host memory, or device memory that the host writes through its own mapping.
  std::byte* chunks = nullptr;  // [count][chunk_bytes]
  // [count * kFlagStride] in the same memory as chunks: c + 1, written by the host.
  uint64_t* ready = nullptr;
  // [count * kFlagStride] mapped host memory: c + 1, written by the device.
  uint64_t* consumed = nullptr;
  int32_t count = 0;
  size_t chunk_bytes = 0;
};

// Lists the rows of moved_positions and moved_slots of all heads with refresh == 1, pair after
// pair, counts their chunks, and notifies the host (TransferMailbox.request, then asked; if there
// are none, a request of 0 rows). After a fault it lists no rows.
void ListRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, const TransferList& list);

// Waits for every chunk of the list and puts its rows into their slots, with `blocks` blocks of
// 1024 threads; dequantizes quantized rows. A chunk that does not arrive within `deadline_ns` of
// the wait's start sets state->fault and mailbox->fault, naming `layer`, and ends this and all
// further transfers.
void DrainRows(Stream& stream, const TransferList& list, const TransferRing& ring,
               const RowFormat& from, const RowFormat& to, int32_t layer, uint64_t deadline_ns,
               int32_t blocks);

// Copies rows [first, first + count) of the list from `staged` (device memory, adjacent) into their
// slots.
void ScatterRows(Stream& stream, const TransferList& list, int64_t first, int64_t count,
                 const std::byte* staged, const RowFormat& from, const RowFormat& to);

}  // namespace litecache::ops::cuda
