#include "lab/policies/common/store_prefill_cpu.h"

#include "kv/layout.h"

namespace litecache::lab {

StorePrefill::StorePrefill(const Layout& layout, const SequenceTable& store)
    : layout_(layout), geometry_(MakeGeometry(layout)), store_(store) {}

void StorePrefill::Attend(Stream& stream, int64_t layer, std::span<const StepSequence> sequences,
                          const MatrixView& q, const MatrixView& k, const MatrixView& v,
                          const ops::Softmax& softmax, const MatrixView& out, Stats* stats) {
  views_.clear();
  int64_t rows = 0, seen = 0;
  for (const StepSequence& sequence : sequences) {
    views_.push_back({.first_row = sequence.first_row,
                      .rows = sequence.rows,
                      .past = sequence.past,
                      .pages = store_.Lists(sequence.id) + layer * layout_.kv_heads,
                      .pages_per_head = store_.Blocks(sequence.id)});
    rows += sequence.rows;
    seen += sequence.past + sequence.rows;
  }
  ops::AppendKv(stream, geometry_, views_, k, v);
  ops::Attention(stream, geometry_, views_, q, layout_.q_heads, softmax, out);
  const uint64_t head_rows = static_cast<uint64_t>(layout_.kv_heads) * geometry_.row_bytes();
  stats->bytes_read += static_cast<uint64_t>(seen) * head_rows;
  stats->bytes_written += static_cast<uint64_t>(rows) * head_rows;
  stats->prefill.rows += static_cast<uint64_t>(rows * layout_.kv_heads);
  stats->prefill.bytes += static_cast<uint64_t>(rows) * head_rows;
}

}  // namespace litecache::lab
