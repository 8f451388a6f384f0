#include "eval/ruler/search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace litecache::eval {
namespace {

// Between closer sizes the words matter more than the slope.
constexpr int64_t kSlopeDistance = 20;

}  // namespace

int64_t LargestFit(int64_t low, int64_t high, int64_t budget, const SizeGuess& guess,
                   const std::function<int64_t(int64_t)>& tokens) {
  double slope = std::max(guess.tokens_per_unit, 1e-3);
  // Invariant: `fits` fits or is low - 1; `fails` does not fit or is high + 1.
  int64_t fits = low - 1;
  int64_t fails = high + 1;
  const double start = std::floor((static_cast<double>(budget) - guess.tokens_at_zero) / slope);
  int64_t size =
      static_cast<int64_t>(std::clamp(start, static_cast<double>(low), static_cast<double>(high)));
  int64_t gallop = 1;
  int64_t last_size = -1;
  int64_t last_slack = 0;
  for (int step = 0; fits + 1 < fails; ++step) {
    const int64_t slack = budget - tokens(size);
    (slack >= 0 ? fits : fails) = size;
    if (last_size >= 0 && std::abs(size - last_size) >= kSlopeDistance) {
      slope = std::max(
          static_cast<double>(last_slack - slack) / static_cast<double>(size - last_size), 1e-3);
    }
    last_size = size;
    last_slack = slack;
    if (slack == 0) break;
    // The size that the slope predicts. As long as no size has failed: at least twice the last
    // step, but at most twice the size, so that a badly measured slope cannot lead to gigabytes of
    // text. After that, every third step bisects, whatever the slope.
    auto next = size + static_cast<int64_t>(std::floor(static_cast<double>(slack) / slope));
    if (slack > 0 && fails > high) {
      next = std::clamp(next, size + gallop, std::max(2 * size, size + gallop));
      gallop *= 2;
    } else if (step % 3 == 2) {
      next = fits + (fails - fits) / 2;
    }
    size = std::clamp(next, fits + 1, fails - 1);
  }
  return fits;
}

}  // namespace litecache::eval
