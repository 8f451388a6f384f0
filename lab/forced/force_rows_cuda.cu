#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/forced/force_rows_cuda.h"
#include "lab/forced/take_words.cuh"
#include "ops/select/block_sum.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kForceThreads = 256;

struct ForceProblem {
  StepView step;
  int32_t kv_heads = 0;
  const SelectRange* ranges = nullptr;
  ForcedRows forced;
  int32_t* selected = nullptr;
  const int32_t* selected_count = nullptr;
  int64_t max_selected = 0;
};

// One block per pair; each thread has consecutive words, so that the new selection is ascending.
__global__ void __launch_bounds__(kForceThreads)
    ForceRowsKernel(const __grid_constant__ ForceProblem p) {
  __shared__ int32_t warp_sums[kForceThreads / 32];
  const auto pair = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = pair / p.kv_heads, head = pair % p.kv_heads;
  if (sequence >= *p.step.count) return;
  const StepSequence& s = p.step.sequences[sequence];
  const SelectRange range = p.ranges[sequence];
  const int32_t count = p.selected_count[pair];
  if (range.k < 1 || count < 1 || count >= range.end - range.begin) return;
  const int32_t t = ForcedStep(s.past, s.first_row, p.forced.steps);
  const uint32_t* bits = p.forced.bits + t * p.forced.stride + int64_t{head} * p.forced.words;
  const int32_t blocks = ForcedBlocks(s.past), recorded = p.forced.words / kForcedBlockWords;
  const auto word_at = [&](int32_t w) {
    return bits[ForcedWord(w, blocks, recorded)] & CandidateBits(w, range.begin, range.end);
  };
  const int32_t first_word = range.begin / 32, words = (range.end + 31) / 32 - first_word;
  const int32_t a_thread = (words + kForceThreads - 1) / kForceThreads;
  const int32_t own = min(words, static_cast<int32_t>(threadIdx.x) * a_thread);
  const int32_t first = first_word + own, last = first_word + min(words, own + a_thread);
  int32_t wanted = 0, of_all;
  for (int32_t w = first; w < last; ++w) wanted += __popc(word_at(w));
  const int32_t before = BlockExclusiveSum<kForceThreads>(wanted, warp_sums, &of_all);
  TakeWords(first, last, range.begin, range.end, count, ForcedHead::kWhole, of_all, before,
            p.selected + pair * p.max_selected, word_at);
}

}  // namespace

void ForceRows(Stream& stream, const StepView& step, int64_t kv_heads, const SelectRange* ranges,
               const ForcedRows& forced, int32_t* selected, const int32_t* selected_count,
               int64_t max_selected) {
  LC_CHECK(forced.bits != nullptr && forced.steps >= 1);
  LC_CHECK(forced.words >= kForcedBlockWords && forced.words % kForcedBlockWords == 0, "{} words",
           forced.words);
  const int64_t recorded = forced.words / kForcedBlockWords;
  LC_CHECK(recorded * (step.max_context / kForcedBlock + 1) < int64_t{1} << 31,
           "{} recorded blocks for a context of {}", recorded, step.max_context);
  const auto pairs = static_cast<unsigned>(step.capacity * kv_heads);
  if (pairs == 0) return;
  ForceRowsKernel<<<pairs, kForceThreads, 0, AsCuda(stream).handle()>>>(
      {step, static_cast<int32_t>(kv_heads), ranges, forced, selected, selected_count,
       max_selected});
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
