#include "lab/forced/force_rows_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/device_tables_cuda.h"
#include "test_size.h"

namespace litecache::lab::ops::cuda {
namespace {

class CudaForceRows : public DeviceTableTest {};

TEST_F(CudaForceRows, SelectionsAreThoseOfTheCpu) {
  Random random(41);
  const auto uniform = [&](int64_t low, int64_t high) {
    return static_cast<int32_t>(random.Integer(low, high));
  };
  int64_t changed = 0;
  const int32_t rounds = testing::Rounds(30);
  for (int round = 0; round < rounds; ++round) {
    const int32_t kv_heads = uniform(1, 9), count = uniform(1, 5);
    const int32_t words = kForcedBlockWords * uniform(1, 60);
    const int32_t steps = uniform(1, 7), layers = 3;
    const int32_t longest = testing::Tokens(round % 5 == 0 ? 140000 : round % 3 == 0 ? 200 : 4000);
    std::vector<uint32_t> bits(static_cast<size_t>(steps * layers * kv_heads * words));
    const int sparse = uniform(0, 4);
    for (uint32_t& word : bits) {
      word = static_cast<uint32_t>(random.Integer(0, 0xffffffff));
      for (int i = 0; i < sparse; ++i) word &= static_cast<uint32_t>(random.Integer(0, 0xffffffff));
    }
    std::vector<StepSequence> sequences(static_cast<size_t>(count));
    std::vector<SelectRange> ranges;
    for (int32_t s = 0; s < count; ++s) {
      const int32_t past = uniform(1, longest);
      sequences[static_cast<size_t>(s)] = {.first_row = s, .rows = 1, .past = past};
      const int32_t begin = uniform(0, std::min(past - 1, 40));
      const int32_t end = uniform(begin, past);
      const int32_t k = s == 3 ? 0 : uniform(1, std::max(1, (past - begin) / 3));
      ranges.push_back({.begin = begin, .end = end, .k = k});
    }
    const StepView step = Step(sequences, {});
    const auto pairs = static_cast<size_t>(step.capacity * kv_heads);
    const size_t room = static_cast<size_t>(longest) + 3;
    std::vector<int32_t> selected(pairs * room, -5), counts(pairs, 1 << 20);
    for (int32_t pair = 0; pair < count * kv_heads; ++pair) {
      const SelectRange range = ranges[static_cast<size_t>(pair / kv_heads)];
      const int32_t n = range.end - range.begin, k = range.k < 1 ? 0 : std::min(range.k, n);
      counts[static_cast<size_t>(pair)] = k;
      std::iota(selected.begin() + static_cast<int64_t>(pair * room),
                selected.begin() + static_cast<int64_t>(pair * room) + k, range.begin);
    }
    ranges.resize(static_cast<size_t>(step.capacity), {.begin = 0, .end = 1 << 20, .k = 1 << 19});
    std::vector<int32_t> want = selected;
    for (int32_t pair = 0; pair < count * kv_heads; ++pair) {
      const auto sequence = static_cast<size_t>(pair / kv_heads);
      const StepSequence& s = sequences[sequence];
      const SelectRange range = ranges[sequence];
      const int32_t k = counts[static_cast<size_t>(pair)];
      if (k == 0 || k == range.end - range.begin) continue;
      const int32_t t = ForcedStep(s.past, s.first_row, steps);
      const uint32_t* own = bits.data() + ((t * layers + 1) * kv_heads + pair % kv_heads) *
                                              static_cast<int64_t>(words);
      // The definition: the token's block at the same relative position.
      const int32_t blocks = std::max(s.past / 128, 1), recorded = words / 4;
      std::vector<int32_t> wanted;
      for (int32_t position = range.begin; position < range.end; ++position) {
        const int32_t block = std::min(position / 128, blocks - 1) * recorded / blocks;
        const int32_t bit = block * 128 + position % 128;
        if (own[bit / 32] >> bit % 32 & 1) wanted.push_back(position);
      }
      ops::ForceRows({.kept = ForcedHead::kWhole,
                      .cached = wanted.data(),
                      .cached_count = static_cast<int64_t>(wanted.size()),
                      .begin = range.begin,
                      .end = range.end,
                      .selected = want.data() + pair * room,
                      .count = k});
    }
    const ForcedRows forced{.bits = Upload(bits) + kv_heads * words,
                            .words = words,
                            .steps = steps,
                            .stride = int64_t{layers} * kv_heads * words};
    auto* device_selected = Upload(selected);
    ForceRows(*stream_, step, kv_heads, Upload(ranges), forced, device_selected, Upload(counts),
              static_cast<int64_t>(room));
    const std::vector<int32_t> got = Download(device_selected, selected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << fmt::format("round {}, pair {} of {} heads, entry {} of {}",
                                                round, i / room, kv_heads, i % room,
                                                counts[i / room]);
      changed += want[i] != selected[i];
    }
  }
  if (rounds == 30) {
    EXPECT_GT(changed, 1000);
  }
}

}  // namespace
}  // namespace litecache::lab::ops::cuda
