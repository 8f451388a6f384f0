// Shared by the operations that select rows of a cache by a score.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache::ops {

// Metadata of one (sequence, layer, KV head): token t's is in page t / page_tokens, in the layout
// of the operation that encodes it. page_tokens is a multiple of that layout's block.
struct PagedMetadata {
  std::byte* const* pages = nullptr;
  int64_t page_tokens = 0;
};

// The k candidates of [begin, end) with the highest scores, in ascending order of position. Equal
// scores: the lower position first; a NaN counts as the lowest score. Results depend neither on the
// number of threads nor on the other selections of a call.
struct Selection {
  int64_t begin = 0, end = 0;  // begin < end <= 2^31 - 1
  int64_t k = 0;               // >= 1; all candidates are selected if k >= end - begin
  // Above 0: of the k best only those that reach NeededScore() (need.h), but at least this many.
  // For scores that are sums of softmaxes.
  int64_t fewest = 0;
  int32_t* positions = nullptr;  // result: room for min(k, end - begin)
  int64_t count = 0;             // result
  float* scores = nullptr;       // result if not null: the scores, as documented by the operation
};

// Bytes of scratch that up to `selections` concurrent selections over up to `tokens` candidates
// keep on the CPU's threads, with scores_per_token floats per candidate: 1 for hash codes, one per
// query head for softmaxed scores, one per query head and 16 tokens for bounds.
uint64_t SelectionScratchBytes(int64_t selections, int64_t tokens, double scores_per_token,
                               int threads);

}  // namespace litecache::ops
