#include "ops/select/selection.h"

#include <algorithm>

namespace litecache::ops {

uint64_t SelectionScratchBytes(int64_t selections, int64_t tokens, double scores_per_token,
                               int threads) {
  // Includes whole blocks at both ends, and the parts of a softmax: three numbers for a piece of a
  // thousand.
  const auto scores =
      static_cast<int64_t>(scores_per_token * (1 + 1.0 / 128) * static_cast<double>(tokens)) + 4096;
  // RunSelectJobs runs two kinds of jobs piece by piece: those that do not divide evenly among the
  // threads, fewer than there are threads, and those longer than 5/4 of a thread's share, again
  // fewer.
  const int64_t together = std::min<int64_t>(selections, 2 * (threads - 1)) * scores;
  const int64_t alone = selections >= threads ? threads * scores : 0;
  const int64_t keys = threads * 2 * (tokens + 64);  // for top-k
  return static_cast<uint64_t>((together + alone + keys) * 4);
}

}  // namespace litecache::ops
