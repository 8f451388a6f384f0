// Iterates over KV rows in a sequence's pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.h"

namespace litecache::ops::cpu {

inline std::byte* KvRowAddress(const KvGeometry& geometry, const KvSequence& sequence, int64_t head,
                               int64_t row) {
  std::byte* page = sequence.pages[head][row / geometry.page_tokens];
  return page + row % geometry.page_tokens * static_cast<int64_t>(geometry.row_bytes());
}

// Calls body(address, first, count) for the runs of rows in [begin, end) within one page; first is
// relative to begin.
template <class Body>
void ForEachRun(const KvGeometry& geometry, const KvSequence& sequence, int64_t head, int64_t begin,
                int64_t end, const Body& body) {
  for (int64_t row = begin; row < end;) {
    const int64_t count = std::min(end - row, geometry.page_tokens - row % geometry.page_tokens);
    body(static_cast<const std::byte*>(KvRowAddress(geometry, sequence, head, row)), row - begin,
         count);
    row += count;
  }
}

}  // namespace litecache::ops::cpu
