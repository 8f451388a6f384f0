#include "lab/forced/force_reuse.h"

#include <bit>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "lab/forced/force_rows.h"

namespace litecache::lab::ops {
namespace {

void Force(const ForceOverlapWork& work, std::vector<uint32_t>* words) {
  const auto begin = static_cast<int32_t>(work.begin), end = static_cast<int32_t>(work.end);
  const auto count = static_cast<int32_t>(work.count);
  words->assign(static_cast<size_t>((end + 31) / 32), 0);
  int32_t cached = 0;
  for (int64_t i = 0; i < work.cached_count; ++i) {
    const int32_t position = work.cached[i];
    if (position < begin || position >= end) continue;
    (*words)[static_cast<size_t>(position / 32)] |= 1u << position % 32;
    ++cached;
  }
  const int32_t others = end - begin - cached;
  const int32_t keep = KeptRows(work.kept, count, cached, end - begin);
  const int32_t fresh = count - keep;
  int32_t* next = work.selected;
  int32_t cached_before = 0, others_before = 0;
  for (int32_t w = begin / 32; w < static_cast<int32_t>(words->size()); ++w) {
    const uint32_t has = (*words)[static_cast<size_t>(w)];
    const uint32_t has_not = CandidateBits(w, begin, end) & ~has;
    const uint32_t turn = WordTurn(w, end);
    const auto take = [&](uint32_t bits, int32_t of_all, int32_t all, int32_t* before) {
      const int32_t first = TakenBefore(*before, of_all, all);
      *before += std::popcount(bits);
      return TakeBits(bits, TakenBefore(*before, of_all, all) - first, turn);
    };
    uint32_t taken =
        take(has, keep, cached, &cached_before) | take(has_not, fresh, others, &others_before);
    for (; taken != 0; taken &= taken - 1) *next++ = 32 * w + std::countr_zero(taken);
  }
  LC_CHECK(next == work.selected + count);
}

void Check(const ForceOverlapWork& w) {
  LC_CHECK(w.kept >= 0 && w.begin >= 0 && w.count >= 0 && w.count <= w.end - w.begin,
           "{} of [{}, {})", w.count, w.begin, w.end);
}

}  // namespace

void ForceRows(const ForceOverlapWork& work) {
  static thread_local std::vector<uint32_t> words;
  Check(work);
  Force(work, &words);
}

void ForceOverlap(Stream& stream, std::span<const ForceOverlapWork> work) {
  for (const ForceOverlapWork& w : work) Check(w);
  AsCpu(stream).pool().ParallelFor(static_cast<int64_t>(work.size()), 1,
                                   [&](int64_t begin, int64_t end, int) {
                                     static thread_local std::vector<uint32_t> words;
                                     for (int64_t i = begin; i < end; ++i)
                                       Force(work[static_cast<size_t>(i)], &words);
                                   });
}

}  // namespace litecache::lab::ops
