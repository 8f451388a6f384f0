// Gathers scattered rows into a buffer on the calling thread: the host's part of a transfer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache::ops {

enum class CollectStores {
  kCached,     // the target is read again soon, by this machine or over its link
  kStreaming,  // bypasses the caches, for write-combining memory or memory that the CPU only writes
};

// Bytes [i * row_bytes, (i + 1) * row_bytes) of `target` = the row at address sources[i], i <
// count. After kStreaming stores, call FlushStores() before signalling completion.
void CollectRows(const uint64_t* sources, int64_t count, size_t row_bytes, std::byte* target,
                 CollectStores stores);

// Makes this thread's streaming stores visible before its later stores.
void FlushStores();

}  // namespace litecache::ops
