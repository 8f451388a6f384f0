// Gathers scattered rows into one place on the calling thread: the host's part of a transfer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache::ops {

enum class CollectStores {
  kCached,     // the target is read again soon, by this machine or over its link
  kStreaming,  // past the caches: into memory that the CPU only writes, or write-combining memory
};

// Bytes [i * row_bytes, (i + 1) * row_bytes) of `target` = the row at address sources[i], i <
// count. After kStreaming stores, a FlushStores() comes before anybody is told.
void CollectRows(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target,
                 CollectStores stores);

// Streaming stores of this thread are seen before its later ones.
void FlushStores();

}  // namespace litecache::ops
