// Copies rows of a list of tokens into a list of slots, as transfer engines do.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/common/row_format.h"

namespace litecache::ops {

// One (sequence, layer, KV head): the row of token positions[i] of `source` goes to slot slots[i]
// of `target`, i < count. Formats may differ (rows are dequantized on the way); the slots are
// distinct.
struct MoveWork {
  PagedRows source;
  SlotRows target;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  int64_t count = 0;
};

// Processes head after head, so that reads stay within one head's pages.
void MoveRows(Stream& stream, std::span<const MoveWork> work);

}  // namespace litecache::ops
