#include "ops/gated_delta_testing.h"

namespace litecache::ops {

void GatedDeltaTest::Launch(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                            const std::vector<GatedDeltaSequence>& sequences,
                            const GatedDeltaInputs& in, const MatrixView& out) {
  GatedDelta(*stream_, shape, weights, sequences, in, out);
}

namespace {

TEST_F(GatedDeltaTest, ThreadsDoNotMatter) {
  constexpr int64_t kRows = 30;
  const DeltaCase a(random_, {2, 6, 40, 72, 4}, kRows, 0);
  const std::vector<DeltaRows> sequences = {{0, 20, 0}, {20, 1, 6}, {21, 9, 3}};
  const DeltaStates states = RandomStates(random_, a.shape, sequences);
  ForEachVariant([&] {
    const Results want = Run(a, sequences, states);
    for (const int threads : {1, 2, 7}) {
      CpuDevice device(threads);
      std::unique_ptr<Stream> other = device.CreateStream();
      stream_.swap(other);
      const Results got = Run(a, sequences, states);
      stream_.swap(other);
      EXPECT_TRUE(SameBits(got.out, want.out) && got.states == want.states)
          << threads << " threads";
    }
  });
}

}  // namespace
}  // namespace litecache::ops
