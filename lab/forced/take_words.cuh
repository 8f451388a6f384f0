// Forces a measurement's results on a selection, one thread's words of 32 positions at a time.
#pragma once

#include "lab/forced/force_reuse.h"
#include "lab/namespaces.h"

namespace litecache::lab::ops::cuda {

// The positions taken in one thread's consecutive words [first, last) of a bitmap of the positions
// that have a slot: word_at(w). cached_before: bits of the words before.
template <class WordAt>
__device__ void TakeWords(int32_t first, int32_t last, int32_t begin, int32_t end, int32_t count,
                          int32_t kept, int32_t cached, int32_t cached_before, int32_t* selected,
                          const WordAt& word_at) {
  int32_t others_before = max(begin, min(end, 32 * first)) - begin - cached_before;
  const int32_t others = end - begin - cached;
  const int32_t keep = KeptRows(kept, count, cached, end - begin), fresh = count - keep;
  int32_t kept_before = TakenBefore(cached_before, keep, cached);
  int32_t fresh_before = TakenBefore(others_before, fresh, others);
  int32_t* next = selected + kept_before + fresh_before;
  for (int32_t w = first; w < last; ++w) {
    const uint32_t has = word_at(w);
    const uint32_t has_not = CandidateBits(w, begin, end) & ~has;
    const uint32_t turn = WordTurn(w, end);
    cached_before += __popc(has);
    others_before += __popc(has_not);
    const int32_t kept_now = TakenBefore(cached_before, keep, cached);
    const int32_t fresh_now = TakenBefore(others_before, fresh, others);
    uint32_t taken = TakeBits(has, kept_now - kept_before, turn) |
                     TakeBits(has_not, fresh_now - fresh_before, turn);
    kept_before = kept_now;
    fresh_before = fresh_now;
    for (; taken != 0; taken &= taken - 1) {
      *next++ = 32 * w + __ffs(static_cast<int>(taken)) - 1;
    }
  }
}

}  // namespace litecache::lab::ops::cuda
