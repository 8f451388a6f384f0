// ops/attention/attention.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/attention/attention.h"

namespace litecache::ops::cpu {

void AppendKv(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
              const MatrixView& k, const MatrixView& v);
void Attention(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, const Softmax& softmax, const MatrixView& out,
               const KeptBlocks* kept);
uint64_t AttentionScratchBytes(int64_t kv_heads, int64_t group, int64_t head_dim,
                               int64_t sequences);

}  // namespace litecache::ops::cpu
