#include "ops/attention/attention.h"

#include "device/cpu/cpu_device.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/kept_blocks.h"

namespace litecache::ops {
namespace {

void Check(const KvGeometry& geometry, std::span<const KvSequence> sequences, int64_t rows) {
  LC_CHECK(geometry.kv_heads >= 1 && geometry.head_dim >= 1 && geometry.page_tokens >= 1);
  LC_CHECK(geometry.dtype == DType::kBF16 || geometry.dtype == DType::kF32);
  for (const KvSequence& s : sequences) {
    LC_CHECK(s.rows >= 1 && s.first_row >= 0 && s.first_row + s.rows <= rows && s.past >= 0,
             "rows [{}, {}) of {}, past {}", s.first_row, s.first_row + s.rows, rows, s.past);
    LC_CHECK(s.past + s.rows <= s.pages_per_head * geometry.page_tokens,
             "{} tokens in {} pages of {}", s.past + s.rows, s.pages_per_head,
             geometry.page_tokens);
  }
}

}  // namespace

void AppendKv(Stream& stream, const KvGeometry& geometry, std::span<const KvSequence> sequences,
              const MatrixView& k, const MatrixView& v) {
  Check(geometry, sequences, k.rows);
  LC_CHECK(k.dtype == DType::kF32 && v.dtype == DType::kF32 && k.rows == v.rows);
  LC_CHECK(k.cols == geometry.kv_heads * geometry.head_dim && v.cols == k.cols);
  cpu::AppendKv(AsCpu(stream).pool(), geometry, sequences, k, v);
}

void Attention(Stream& stream, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, const Softmax& softmax, const MatrixView& out,
               const KeptBlocks* kept) {
  Check(geometry, sequences, q.rows);
  LC_CHECK(q.dtype == DType::kF32 && out.dtype == DType::kF32 && q.rows == out.rows);
  LC_CHECK(q_heads >= 1 && q_heads % geometry.kv_heads == 0, "{} query heads, {} KV heads", q_heads,
           geometry.kv_heads);
  LC_CHECK(q.cols == q_heads * geometry.head_dim && out.cols == q.cols);
  if (kept != nullptr) {
    LC_CHECK(sequences.size() == 1, "the kept blocks of {} sequences", sequences.size());
    const KvSequence& s = sequences.front();
    LC_CHECK(kept->query_rows >= 1 && int64_t{kept->query_rows} * kept->query_blocks >= s.rows,
             "{} blocks of {} queries for {} tokens", kept->query_blocks, kept->query_rows, s.rows);
    LC_CHECK(int64_t{kept->words} * 32 * KeptBlocks::kRows >= s.past + s.rows,
             "{} words of blocks for {} rows", kept->words, s.past + s.rows);
  }
  cpu::Attention(AsCpu(stream).pool(), geometry, sequences, q, q_heads, softmax, out, kept);
}

uint64_t AttentionScratchBytes(int64_t kv_heads, int64_t group, int64_t head_dim,
                               int64_t sequences) {
  return cpu::AttentionScratchBytes(kv_heads, group, head_dim, sequences);
}

}  // namespace litecache::ops
