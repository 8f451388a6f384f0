#include "kv/litecache/spill_cpu.h"

#include "device/sections.h"

namespace litecache::kv {

void Spiller::Run(Stream& stream, int64_t layer, std::span<const SpillWork> work,
                  Traffic* traffic) {
  const Shape& shape = tiers_.shape;
  size_t tokens = 0;
  for (const SpillWork& item : work) tokens += static_cast<size_t>(item.end - item.begin);
  if (tokens == 0) return;
  const int64_t row = 2 * shape.layout.head_dim;
  const ops::RowFormat f32{ops::RowEncoding::kF32, shape.layout.head_dim};
  slots_.resize(tokens);
  tokens_.resize(tokens);
  keys_.resize(tokens * static_cast<size_t>(shape.layout.kv_heads * row));
  moves_.clear();
  encodes_.clear();

  size_t first = 0;
  float* keys = keys_.data();
  for (const SpillWork& item : work) {
    const SequenceView& sequence = *item.sequence;
    const int64_t count = item.end - item.begin;
    for (int64_t i = 0; i < count; ++i) {
      slots_[first + static_cast<size_t>(i)] =
          static_cast<int32_t>(shape.FixedSlot(item.begin + i));
      tokens_[first + static_cast<size_t>(i)] = static_cast<int32_t>(item.begin + i);
    }
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
      ops::PagedRows source = sequence.Rows(shape, layer, head);
      const int32_t* indices = tokens_.data() + first;
      if (list >= 0) {
        const ops::PagedRows target = source;
        source = tiers_.geometry.Rows(sequence.slots->heads[static_cast<size_t>(list)]);
        indices = slots_.data() + first;
        moves_.push_back({.source = source,
                          .target = target,
                          .positions = indices,
                          .slots = tokens_.data() + first,
                          .count = count});
        traffic->rows += static_cast<uint64_t>(count);
      }
      std::byte* const* metadata = sequence.Metadata(shape, layer, head);
      if (metadata == nullptr) continue;
      encodes_.push_back({.layer = layer,
                          .head = head,
                          .keys = keys,
                          .key_stride = row,
                          .begin = item.begin,
                          .count = count,
                          .metadata = metadata});
      for (int64_t i = 0; i < count; ++i, keys += row) {
        ops::ConvertRow(shape.format, source.Row(indices[i]), f32,
                        reinterpret_cast<std::byte*>(keys));
      }
    }
    first += static_cast<size_t>(count);
  }
  ops::MoveRows(stream, moves_);
  if (!encodes_.empty()) {
    Mark(stream, Section::kRetrieval);
    retriever_.Encode(stream, encodes_);
    Mark(stream, Section::kManagement);
  }
  traffic->bytes = traffic->rows * shape.store_format.row_bytes();
}

}  // namespace litecache::kv
