// The kernels behind ops/attention/attention_cuda.h; attention_cuda.cc selects one.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/attended_rows.cuh"
#include "ops/attention/kept_blocks_cuda.h"

namespace litecache::ops::cuda {

struct AttentionOperands {
  MatrixView q, out;
  int32_t q_heads = 0;
  float scale = 0;               // for scores in units of log2 e
  const float* sinks = nullptr;  // Softmax::sinks
  float cap = 0;                 // Softmax::cap in the same units; 0: none
  float* log_sums = nullptr;     // [rows][q_heads], or null
  // Of a prompt chunk of one sequence, for the kernels by tiles: the rows it attends. bits null:
  // all.
  DeviceKeptBlocks kept;
};

// Query heads of a group that a block of the split kernel processes together: the rows of a matrix
// product.
inline constexpr int64_t kSplitQueries = 16;
// The most blocks a split kernel is launched with.
inline constexpr int64_t kMaxSplitBlocks = 512;

// Attention for one row per sequence, or causal attention of a chunk that SplitServesChunk(); bf16
// rows, head_dim a multiple of 8 and at most 256. The context is split over blocks.
void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch);

// Short chunks: the tokens of all of a KV head's query heads are attended together as far as a
// matrix product has rows for them, so that a context is read at most kMostShortChunkReads times.
// The kernels by tiles have a block for each query head (and 128 tokens) that reads all of the
// context; they leave most of a GPU idle.
inline constexpr int32_t kMostShortChunk = 64, kMostShortChunkReads = 8;
bool SplitServesChunk(const StepView& step, int64_t kv_heads, int64_t q_heads);

// The same for one row per sequence where cached slots are codes (tables.tables.codes), or there
// are none; head_dim a multiple of 16.
void SplitCodesAttention(Stream& stream, const AttendedTables& tables,
                         const AttentionOperands& operands, void* scratch);

// The same as SplitAttention for many short contexts in which every query head has its own rows,
// without splitting contexts. The rows attended are those before the new token and its own.
bool WarpAttentionServes(Stream& stream, const StepView& step, int64_t kv_heads,
                         const RowTable& table, int64_t q_heads);
void WarpAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                   const AttentionOperands& operands);

// Causal attention by tiles of queries; bf16 rows, head_dim a multiple of 8.
void TiledAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const AttentionOperands& operands);
// The same where tokens attend the sink and a window (WindowAttention).
void TiledWindowAttention(Stream& stream, const StepView& step, int64_t kv_heads,
                          const RowTable& table, int32_t window, const AttentionOperands& operands);

// The same on Hopper, if supported (outputs in bf16; head_dim 64, 128 or 256; with a cap 128 or
// 256) and compiled (LITECACHE_FLASHINFER). Scores must be finite.
bool HopperAttentionServes(const RowTable& table, const AttentionOperands& operands);
void HopperAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const AttentionOperands& operands);

// Attention over bf16 or f32 rows of any head_dim: one thread block per query.
void PlainAttention(Stream& stream, const AttendedTables& tables,
                    const AttentionOperands& operands);

}  // namespace litecache::ops::cuda
