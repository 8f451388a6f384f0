#include "ops/select/selection.h"

#include <algorithm>

namespace litecache::ops {

uint64_t SelectionScratchBytes(int64_t selections, int64_t tokens, double scores_per_token,
                               int threads) {
  // Whole blocks at both ends, and the parts of a softmax: three numbers a piece of a thousand.
  const auto scores =
      static_cast<int64_t>(scores_per_token * (1 + 1.0 / 128) * static_cast<double>(tokens)) + 4096;
  // Piece by piece run what goes round the threads no more, fewer than there are threads, and what
  // is longer than 5/4 of a thread's share, fewer again (RunSelectJobs).
  const int64_t together = std::min<int64_t>(selections, 2 * (threads - 1)) * scores;
  const int64_t alone = selections >= threads ? threads * scores : 0;
  const int64_t keys = threads * 2 * (tokens + 64);  // of top-k
  return static_cast<uint64_t>((together + alone + keys) * 4);
}

}  // namespace litecache::ops
