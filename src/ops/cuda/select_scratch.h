// How selections divide their scratch among pairs.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// 32-bit words a pair: for keys that do not fit into shared memory, and for the selection by
// bounds.
int64_t KeyWords(int64_t max_context);
int64_t BoundsScratchWords(int64_t group, int64_t max_context);
// Blocks of tokens a context may have, an even number: 64-bit entries lie behind 32-bit ones.
int64_t BoundsBlocks(int64_t max_context);

}  // namespace litecache::ops::cuda
