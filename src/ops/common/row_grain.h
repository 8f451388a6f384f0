// How finely operations over rows divide their work among threads.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// Rows in a ParallelFor piece of about 16K elements: smaller pieces cost more to hand out than to
// process.
inline int64_t RowGrain(int64_t cols) { return cols >= 16384 ? 1 : 16384 / (cols > 0 ? cols : 1); }

}  // namespace litecache::ops::cpu
