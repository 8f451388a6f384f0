// How finely operations over rows divide their work among threads.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// Rows a piece of a ParallelFor should have so that it does about 16K elements: less work than that
// costs more to hand out than to do.
inline int64_t RowGrain(int64_t cols) { return cols >= 16384 ? 1 : 16384 / (cols > 0 ? cols : 1); }

}  // namespace litecache::ops::cpu
