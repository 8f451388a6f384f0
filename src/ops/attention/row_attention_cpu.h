// ops/attention/row_attention.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/attention/row_attention.h"

namespace litecache::ops::cpu {

void RowAttention(ThreadPool& pool, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, const Softmax& softmax);

}  // namespace litecache::ops::cpu
