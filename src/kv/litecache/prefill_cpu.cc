#include "kv/litecache/prefill_cpu.h"

#include <cstring>

#include "base/error.h"

namespace litecache::kv {

void PrefillPath::Attend(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                         std::span<std::byte* const> staging, const MatrixView& q,
                         const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                         const MatrixView* out) {
  const Shape& shape = tiers_.shape;
  spiller_.EncodeStored(stream, layer, sequences);
  SpillRing(stream, layer, sequences);
  Encode(stream, layer, sequences, k);
  KeepLastQueries(layer, sequences, q);
  if (shape.store_format.quantized()) {
    for (const SequenceView& sequence : sequences) {
      AttendStaged(stream, layer, sequence, staging, q, k, v, softmax, out);
    }
  } else {
    AttendInPlace(stream, layer, sequences, q, k, v, softmax, out);
  }

  int64_t seen = 0, rows = 0, offloaded = 0;
  for (const SequenceView& sequence : sequences) {
    seen += sequence.n();
    rows += sequence.rows;
  }
  for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
    offloaded += shape.offloads(layer, head);
  }
  const auto heads = static_cast<uint64_t>(shape.layout.kv_heads);
  Stats& stats = counters_.stats;
  if (out != nullptr) {
    stats.bytes_read += static_cast<uint64_t>(seen) * heads * shape.format.row_bytes();
  }
  stats.bytes_written += static_cast<uint64_t>(rows) * heads * shape.format.row_bytes();
  stats.prefill.rows += static_cast<uint64_t>(rows * offloaded);
  stats.prefill.bytes += static_cast<uint64_t>(rows * offloaded) * shape.store_format.row_bytes();
}

void PrefillPath::SpillRing(Stream& stream, int64_t layer,
                            std::span<const SequenceView> sequences) {
  spills_.clear();
  for (const SequenceView& sequence : sequences) {
    if (sequence.past > sequence.stored) {
      spills_.push_back({&sequence, sequence.stored, sequence.past});
    }
  }
  spiller_.Run(stream, layer, spills_, &counters_.stats.spill);
}

void PrefillPath::Encode(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                         const MatrixView& k) {
  const Shape& shape = tiers_.shape;
  encodes_.clear();
  for (const SequenceView& sequence : sequences) {
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      std::byte* const* metadata = sequence.Metadata(shape, layer, head);
      if (metadata == nullptr) continue;
      encodes_.push_back({.layer = layer,
                          .head = head,
                          .keys = k.Row<float>(sequence.row) + head * shape.layout.head_dim,
                          .key_stride = k.stride,
                          .begin = sequence.past,
                          .count = sequence.rows,
                          .metadata = metadata});
    }
  }
  if (!encodes_.empty()) retriever_.Encode(stream, encodes_);
}

void PrefillPath::KeepLastQueries(int64_t layer, std::span<const SequenceView> sequences,
                                  const MatrixView& q) {
  const Shape& shape = tiers_.shape;
  for (const SequenceView& sequence : sequences) {
    if (sequence.drafted && sequence.past > 0) continue;  // its last query may be a rejected one
    const float* last = q.Row<float>(sequence.row + sequence.rows - 1);
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
      if (list < 0) continue;
      std::memcpy(tiers_.slots.Label(*sequence.slots, list),
                  last + head * shape.group * shape.layout.head_dim, shape.label_bytes());
    }
  }
}

ops::KvSequence PrefillPath::View(const SequenceView& sequence) const {
  return {.first_row = sequence.row,
          .rows = sequence.rows,
          .past = sequence.past,
          .pages = nullptr,
          .pages_per_head = tiers_.shape.pages.BlocksFor(sequence.n())};
}

void PrefillPath::AttendInPlace(Stream& stream, int64_t layer,
                                std::span<const SequenceView> sequences, const MatrixView& q,
                                const MatrixView& k, const MatrixView& v,
                                const ops::Softmax& softmax, const MatrixView* out) {
  const Shape& shape = tiers_.shape;
  const auto heads = static_cast<size_t>(shape.layout.kv_heads);
  lists_.resize(sequences.size() * heads);
  views_.clear();
  for (const SequenceView& sequence : sequences) {
    std::byte* const** lists = lists_.data() + views_.size() * heads;
    for (size_t head = 0; head < heads; ++head) {
      lists[head] = sequence.Rows(shape, layer, static_cast<int64_t>(head)).pages;
    }
    views_.push_back(View(sequence));
    views_.back().pages = lists;
  }
  const ops::KvGeometry geometry = MakeGeometry(shape.layout);
  ops::AppendKv(stream, geometry, views_, k, v);
  if (out != nullptr) {
    attention_.Attend(stream, layer, geometry, views_, q, shape.layout.q_heads, softmax, *out,
                      [&](size_t i) { return sequences[i].ends_prompt; });
  }
}

void PrefillPath::AttendStaged(Stream& stream, int64_t layer, const SequenceView& sequence,
                               std::span<std::byte* const> staging, const MatrixView& q,
                               const MatrixView& k, const MatrixView& v,
                               const ops::Softmax& softmax, const MatrixView* out) {
  const Shape& shape = tiers_.shape;
  const int64_t blocks = shape.pages.BlocksFor(sequence.n());
  lists_.clear();
  converts_.clear();
  std::byte* const* next = staging.data();
  for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
    const ops::PagedRows rows = sequence.Rows(shape, layer, head);
    if (!shape.offloads(layer, head)) {
      lists_.push_back(rows.pages);
      continue;
    }
    const ops::PagedRows staged{next, shape.pages.page_tokens, shape.format};
    converts_.push_back({.source = rows, .target = staged, .begin = 0, .count = sequence.past});
    lists_.push_back(next);
    next += blocks;
  }
  LC_CHECK(next <= staging.data() + staging.size(), "{} pages of staging", staging.size());
  if (sequence.past > 0 && out != nullptr) ops::ConvertRows(stream, converts_);
  views_.assign(1, View(sequence));
  views_[0].pages = lists_.data();
  const ops::KvGeometry geometry = MakeGeometry(shape.layout);
  ops::AppendKv(stream, geometry, views_, k, v);
  if (out != nullptr) {
    attention_.Attend(stream, layer, geometry, views_, q, shape.layout.q_heads, softmax, *out,
                      [&](size_t) { return sequence.ends_prompt; });
  }
  for (ops::ConvertWork& convert : converts_) {
    std::swap(convert.source, convert.target);
    convert.begin = sequence.past;
    convert.count = sequence.rows;
  }
  ops::ConvertRows(stream, converts_);
}

}  // namespace litecache::kv
