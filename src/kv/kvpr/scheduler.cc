#include "kv/kvpr/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace litecache::kv::kvpr {

TokenCosts CostsOf(const TokenWork& work, double link_bytes_per_second, double flops_per_second) {
  LC_CHECK(link_bytes_per_second > 0 && flops_per_second > 0, "{} bytes/s, {} FLOP/s",
           link_bytes_per_second, flops_per_second);
  return {.input = work.input_bytes / link_bytes_per_second,
          .row = work.row_bytes / link_bytes_per_second,
          .recompute = work.flops / flops_per_second};
}

double TransferTime(const TokenCosts& costs, bool chunked, int64_t split, int64_t tokens) {
  const auto l = static_cast<double>(split);
  const double inputs = l * costs.input;
  const double rows = static_cast<double>(tokens - split) * costs.row;
  const double recompute = l * costs.recompute;
  return chunked ? std::max(costs.other + recompute, inputs + rows)
                 : inputs + std::max(recompute, rows);
}

int64_t BestSplit(const TokenCosts& costs, bool chunked, int64_t tokens) {
  // Both bounds are piecewise linear in l with one bend. Below it the link is the bottleneck and
  // the slope is input - row; above it recomputation is, and the time grows.
  if (tokens <= 0 || costs.input >= costs.row) return 0;
  const double per_token = costs.recompute + costs.row - (chunked ? costs.input : 0);
  const double rows = static_cast<double>(tokens) * costs.row - (chunked ? costs.other : 0);
  const auto below = static_cast<int64_t>(
      std::clamp(std::floor(rows / per_token), 0.0, static_cast<double>(tokens)));
  const int64_t above = std::min(below + 1, tokens);
  return TransferTime(costs, chunked, above, tokens) < TransferTime(costs, chunked, below, tokens)
             ? above
             : below;
}

offload::Recomputed PlaceSplit(int64_t split, int64_t tokens, int64_t page, bool first_only) {
  if (split >= tokens) return {.first = tokens};
  const int64_t unit = std::min(kSplitUnit, page);
  const int64_t last = tokens % page;
  const bool with_last = !first_only && last > 0 && split >= last;
  const int64_t rest = split - (with_last ? last : 0);
  // Rounded to the nearest unit, but at most the tokens of whole pages.
  const int64_t first = std::min((rest + unit / 2) / unit * unit, tokens - last);
  return {.first = first, .last = with_last ? last : 0};
}

}  // namespace litecache::kv::kvpr
