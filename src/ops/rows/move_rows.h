// Rows of a list of tokens into a list of slots: what a transfer engine does.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/common/row_format.h"

namespace litecache::ops {

// One (sequence, layer, KV head): row of token positions[i] of `source` into slot slots[i] of
// `target`, i < count. Formats may differ (rows are expanded as they land); slots differ from each
// other.
struct MoveWork {
  PagedRows source;
  SlotRows target;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  int64_t count = 0;
};

// Head after head, so that reads stay within one head's pages.
void MoveRows(Stream& stream, std::span<const MoveWork> work);

}  // namespace litecache::ops
