// CPU implementations behind src/ops: same contracts, arguments already checked.
#pragma once

#include "device/cpu/cpu_device.h"
#include "ops/attention/attention.h"
#include "ops/attention/row_attention.h"
#include "ops/dense/activation.h"
#include "ops/dense/embedding.h"
#include "ops/dense/norm.h"
#include "ops/dense/rope.h"
#include "ops/linear/linear.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/rows/convert_rows_cpu.h"
#include "ops/rows/move_rows.h"

namespace litecache::ops::cpu {

void Linear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue);
uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads);
void RmsNorm(ThreadPool& pool, const MatrixView& x, const float* weight, float eps, int64_t groups,
             const MatrixView& y);
void LayerNorm(ThreadPool& pool, const MatrixView& x, const float* weight, const float* bias,
               float eps, const MatrixView& y);
void RopeRotations(ThreadPool& pool, std::span<const int32_t> positions,
                   std::span<const float> inv_freq, float scale, const MatrixView& rotations);
void Rope(ThreadPool& pool, const MatrixView& x, const MatrixView& rotations, int64_t heads);
void SiluMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& up, const MatrixView& y);
void Relu(ThreadPool& pool, const MatrixView& x);
void Embedding(ThreadPool& pool, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue);
void AppendKv(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
              const MatrixView& k, const MatrixView& v);
void Attention(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, float scale, const MatrixView& out);
uint64_t AttentionScratchBytes(int64_t kv_heads, int64_t group, int64_t head_dim,
                               int64_t sequences);
void ConvertRows(ThreadPool& pool, std::span<const ConvertWork> work);
void CopyRows(const ConvertWork& work);
void MoveRows(ThreadPool& pool, std::span<const MoveWork> work);
void RowAttention(ThreadPool& pool, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, float scale);
void QsacLookup(ThreadPool& pool, int64_t group, int64_t head_dim, Aggregation aggregation,
                std::span<LookupWork> work);

// Rows a piece of a ParallelFor should have so that it does about 16K elements: less work than that
// costs more to hand out than to do.
inline int64_t RowGrain(int64_t cols) { return cols >= 16384 ? 1 : 16384 / (cols > 0 ? cols : 1); }

}  // namespace litecache::ops::cpu
