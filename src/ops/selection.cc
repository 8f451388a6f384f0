#include "ops/selection.h"

#include <algorithm>

#include "ops/cpu/select/jobs.h"

namespace litecache::ops {

uint64_t SelectionScratchBytes(int64_t selections, int64_t tokens, double scores_per_token,
                               int threads) {
  // Whole blocks at both ends, and the parts of a softmax: three numbers a piece of a thousand.
  const auto scores =
      static_cast<int64_t>(scores_per_token * (1 + 1.0 / 128) * static_cast<double>(tokens)) + 4096;
  const int64_t together = std::min(selections, cpu::WholeJobs(threads) - 1) * scores;
  const int64_t alone = selections >= cpu::WholeJobs(threads) ? threads * scores : 0;
  const int64_t keys = threads * 2 * (tokens + 64);  // of top-k
  return static_cast<uint64_t>((together + alone + keys) * 4);
}

}  // namespace litecache::ops
