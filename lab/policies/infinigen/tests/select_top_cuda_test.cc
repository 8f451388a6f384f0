// Selection of the best listed candidates.
#include "lab/policies/infinigen/ops/select_top_cuda.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "ops/device_tables_cuda.h"
#include "test_size.h"

namespace litecache::lab::ops::cuda {
namespace {

using CudaSelectTop = DeviceTableTest;

TEST_F(CudaSelectTop, TheBestOfEachRange) {
  for (const int32_t longest : {1, 33, 5000, 70000}) {
    const int32_t most = testing::Tokens(longest);
    Random random(static_cast<uint64_t>(most));
    const int64_t kv_heads = 2, count = 5, stride = most + 3;
    std::vector<StepSequence> sequences(static_cast<size_t>(count));
    std::vector<SelectRange> ranges;
    for (int32_t s = 0; s < count; ++s) {
      sequences[static_cast<size_t>(s)] = {.first_row = s, .rows = 1, .past = most};
      const int32_t n = s == 3 ? 0 : std::max(1, most - s * most / 6);
      ranges.push_back({.begin = 7 * s, .end = 7 * s + n, .k = s == 2 ? 0 : 1 + s * n / 3});
    }
    const StepView step = Step(sequences, {});
    ranges.resize(static_cast<size_t>(step.capacity), {.begin = 0, .end = 1 << 20, .k = 1 << 19});
    std::vector<uint32_t> keys(static_cast<size_t>(step.capacity * kv_heads * stride));
    for (uint32_t& key : keys) key = static_cast<uint32_t>(random.Normal(40) + 1000);  // ties
    auto* selected = Poisoned<int32_t>(static_cast<size_t>(step.capacity * kv_heads * stride));
    auto* counts = Poisoned<int32_t>(static_cast<size_t>(step.capacity * kv_heads));
    SelectTop(*stream_, step, kv_heads, Upload(ranges), Upload(keys), stride, most, selected,
              counts, stride);
    const auto got = Download(selected, static_cast<size_t>(count * kv_heads * stride));
    const auto got_counts = Download(counts, static_cast<size_t>(count * kv_heads));
    for (int64_t pair = 0; pair < count * kv_heads; ++pair) {
      const SelectRange range = ranges[static_cast<size_t>(pair / kv_heads)];
      const int32_t n = range.end - range.begin, k = std::min(range.k, n);
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      const uint32_t* own = keys.data() + pair * stride;
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return own[a] > own[b]; });
      order.resize(static_cast<size_t>(k));
      std::sort(order.begin(), order.end());
      ASSERT_EQ(got_counts[static_cast<size_t>(pair)], k) << "pair " << pair;
      for (int32_t i = 0; i < k; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(pair * stride + i)],
                  range.begin + order[static_cast<size_t>(i)])
            << "pair " << pair << ", the " << i << "-th of " << k << " of " << n;
      }
    }
  }
}

}  // namespace
}  // namespace litecache::lab::ops::cuda
