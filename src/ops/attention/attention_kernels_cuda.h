// The kernels behind ops/attention/attention_cuda.h; attention.cc chooses.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/attended_rows.cuh"

namespace litecache::ops::cuda {

struct AttentionOperands {
  MatrixView q, out;
  int32_t q_heads = 0;
  float scale = 0;            // of scores in units of log2 e
  float* log_sums = nullptr;  // [rows][q_heads], or null: not wanted
};

// Query heads of a group that a block of the split kernel serves at once: a matrix product's rows.
inline constexpr int64_t kSplitQueries = 16;
// The most blocks a split kernel is launched with.
inline constexpr int64_t kMaxSplitBlocks = 512;

// One row a sequence; bf16 rows of a head_dim that is a multiple of 8. The context is split over
// blocks.
void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch);

// The same where cached slots are codes (tables.tables.codes); head_dim a multiple of 16.
void SplitCodesAttention(Stream& stream, const AttendedTables& tables,
                         const AttentionOperands& operands, void* scratch);

// The same as SplitAttention for many short contexts and query heads with rows of their own, where
// it serves them: no context is split. The rows attended are those before the new token and its
// own.
bool WarpAttentionServes(Stream& stream, const StepView& step, int64_t kv_heads,
                         const RowTable& table, int64_t q_heads);
void WarpAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                   const AttentionOperands& operands);

// Causal, by tiles of queries; bf16 rows of a head_dim that is a multiple of 8.
void TiledAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const AttentionOperands& operands);

// The same on Hopper, where it serves (outputs in bf16, head dimensions of 64, 128 and 256) and is
// compiled (LITECACHE_FLASHINFER). Scores have to be finite.
bool HopperAttentionServes(const RowTable& table, const AttentionOperands& operands);
void HopperAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const AttentionOperands& operands);

// Rows of any head_dim in bf16 or f32: a block a query.
void PlainAttention(Stream& stream, const AttendedTables& tables,
                    const AttentionOperands& operands);

}  // namespace litecache::ops::cuda
