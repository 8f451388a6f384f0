// All sizes of policy streaming: which slot a token has, which slots a token attends, what a
// sequence costs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kv/cache.h"
#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv::streaming {

// Slots [begin, begin + count) of a head.
struct SlotRange {
  int64_t begin = 0, count = 0;
};

// A sequence has one page with the slots of all layers and heads, whatever its length: [layer][KV
// head][sink rows, then a ring of recent rows]. Beside the window of a token, the ring has room for
// the rest of the token's block of a prompt, so that chunks of any length can be processed block by
// block, and for drafted tokens, so that they can be taken back.
struct Shape {
  Shape(const Layout& model, const KvOptions& options, DeviceType device = DeviceType::kCpu)
      : layout(model),
        format(ops::FormatOf(model.dtype, model.head_dim)),
        sink(options.sink_tokens),
        recent(options.recent_tokens),
        block_tokens(device == DeviceType::kCuda ? kGpuBlockTokens : kCpuBlockTokens) {
    CheckLayout(layout);
  }

  // A GPU needs work for all of its SMs.
  static constexpr int64_t kCpuBlockTokens = 16, kGpuBlockTokens = 512;

  Layout layout;
  ops::RowFormat format;
  int64_t sink = 0;
  int64_t recent = 0;
  int64_t block_tokens = 0;  // prompt tokens that are stored, then attended, together

  // Rows behind a token's window that are stored without overwriting a row of it.
  int64_t spare() const { return std::max(block_tokens - 1, Cache::kMostDrafted); }
  int64_t ring() const { return recent + spare(); }
  int64_t slots() const { return sink + ring(); }  // slots of one head
  uint64_t head_bytes() const { return static_cast<uint64_t>(slots()) * format.row_bytes(); }
  uint64_t layer_bytes() const { return static_cast<uint64_t>(layout.kv_heads) * head_bytes(); }
  uint64_t page_bytes() const { return static_cast<uint64_t>(layout.layers) * layer_bytes(); }

  int64_t Slot(int64_t token) const {
    return token < sink ? token : sink + (token - sink) % ring();
  }
  // Number of tokens that token `token` attends, itself included.
  int64_t Seen(int64_t token) const { return std::min(token + 1, sink + recent); }
  // The same tokens as slots: the sink, and the window in one range or two.
  std::array<SlotRange, 3> Visible(int64_t token) const {
    const int64_t begin = std::max(sink, token + 1 - recent);
    const int64_t count = std::max<int64_t>(token + 1 - begin, 0);
    const int64_t first = Slot(begin);
    const int64_t straight = std::min(count, slots() - first);
    return {{{0, std::min(sink, token + 1)}, {first, straight}, {sink, count - straight}}};
  }
  // The fewest tokens to which a sequence can go back after `written` tokens have been stored:
  // those before the next one's window are overwritten.
  int64_t ShortestLength(int64_t written) const {
    return written - ring() > sink ? written - spare() - 1 : 0;
  }
  // Rows of a head that a layer's attention reads: for a prompt chunk those before it and its own.
  int64_t RowsRead(const StepSequence& sequence) const {
    if (sequence.decode) return Seen(sequence.past);
    return (sequence.past > 0 ? Seen(sequence.past - 1) : 0) + sequence.rows;
  }

  // A prompt chunk writes a second page, so that a failed step can be run again. A drafted chunk of
  // this many rows overwrites none that its first token attends, so that it needs none.
  int64_t most_in_place() const { return spare() + 1; }
  TierBytes BytesFor(int64_t tokens) const { return {.device = tokens > 0 ? 2 * page_bytes() : 0}; }
  // The page is copied as soon as one of the two sequences writes.
  TierBytes ForkBytesFor(int64_t, int64_t tokens) const { return BytesFor(tokens); }
};

}  // namespace litecache::kv::streaming
