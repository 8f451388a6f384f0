#include "kv/litecache/spill_cpu.h"

#include <numeric>

#include "device/sections.h"

namespace litecache::kv {

float* Spiller::MakeRoom(int64_t tokens) {
  const Layout& layout = tiers_.shape.layout;
  keys_.resize(static_cast<size_t>(tokens * layout.kv_heads * 2 * layout.head_dim));
  tokens_.resize(static_cast<size_t>(tokens));
  return keys_.data();
}

void Spiller::AddEncode(int64_t layer, int64_t head, const SpillWork& work,
                        const ops::PagedRows& rows, const int32_t* indices, float** keys) {
  const Shape& shape = tiers_.shape;
  std::byte* const* metadata = work.sequence->Metadata(shape, layer, head);
  if (metadata == nullptr) return;
  const int64_t row = 2 * shape.layout.head_dim;
  const ops::RowFormat f32{ops::RowEncoding::kF32, shape.layout.head_dim};
  encodes_.push_back({.layer = layer,
                      .head = head,
                      .keys = *keys,
                      .key_stride = row,
                      .begin = work.begin,
                      .count = work.end - work.begin,
                      .metadata = metadata});
  for (int64_t i = 0; i < work.end - work.begin; ++i, *keys += row) {
    ops::ConvertRow(rows.format, rows.Row(indices[i]), f32, reinterpret_cast<std::byte*>(*keys));
  }
}

void Spiller::Encode(Stream& stream) {
  if (encodes_.empty()) return;
  Mark(stream, Section::kRetrieval);
  retriever_.Encode(stream, encodes_);
  Mark(stream, Section::kManagement);
}

void Spiller::Run(Stream& stream, int64_t layer, std::span<const SpillWork> work,
                  Traffic* traffic) {
  const Shape& shape = tiers_.shape;
  int64_t tokens = 0;
  for (const SpillWork& item : work) tokens += item.end - item.begin;
  if (tokens == 0) return;
  float* keys = MakeRoom(tokens);
  slots_.resize(static_cast<size_t>(tokens));
  moves_.clear();
  encodes_.clear();

  size_t first = 0;
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
      AddEncode(layer, head, item, source, indices, &keys);
    }
    first += static_cast<size_t>(count);
  }
  ops::MoveRows(stream, moves_);
  Encode(stream);
  traffic->bytes = traffic->rows * shape.store_format.row_bytes();
}

void Spiller::EncodeStored(Stream& stream, int64_t layer, std::span<const SequenceView> sequences) {
  const Shape& shape = tiers_.shape;
  int64_t tokens = 0;
  for (const SequenceView& sequence : sequences) tokens += sequence.stored - sequence.encoded;
  if (tokens == 0) return;
  float* keys = MakeRoom(tokens);
  encodes_.clear();
  size_t first = 0;
  for (const SequenceView& sequence : sequences) {
    const SpillWork work{&sequence, sequence.encoded, sequence.stored};
    if (work.begin == work.end) continue;
    int32_t* positions = tokens_.data() + first;
    std::iota(positions, positions + (work.end - work.begin), static_cast<int32_t>(work.begin));
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      AddEncode(layer, head, work, sequence.Rows(shape, layer, head), positions, &keys);
    }
    first += static_cast<size_t>(work.end - work.begin);
  }
  Encode(stream);
}

}  // namespace litecache::kv
