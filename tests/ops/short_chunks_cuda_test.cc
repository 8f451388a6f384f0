// Attention of a few new tokens of a sequence over its context, as where drafts are verified.
#include <algorithm>
#include <random>
#include <vector>

#include "ops/attention_testing_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

class ShortChunks : public CudaAttention {};

TEST_F(ShortChunks, OfAllShapes) {
  std::mt19937_64 random = testing::TestRandom();
  const auto between = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const auto pick = [&](const std::vector<int64_t>& values) {
    return values[static_cast<size_t>(between(0, std::ssize(values) - 1))];
  };
  for (int round = testing::Rounds(60); round > 0 && !HasFatalFailure(); --round) {
    const int64_t group = pick({1, 2, 3, 4, 5, 7, 8, 9, 16});
    // Some are longer than the kernel for short chunks takes.
    const auto rows = static_cast<int32_t>(between(2, std::min<int64_t>(70, 9 * (16 / group))));
    const int64_t most_past = pick({0, 40, 700, testing::Tokens(3000)});
    AttentionCase c{RowEncoding::kBF16, pick({8, 64, 72, 128, 200, 256, 512}),
                    between(1, 3),      group,
                    8 * between(1, 20), {}};
    // Of one sequence, or of several with at most as many tokens.
    c.parts.emplace_back(between(0, most_past), rows);
    for (int64_t more = pick({0, 0, 1, 7}); more > 0; --more) {
      c.parts.emplace_back(between(0, most_past), between(1, rows));
    }
    c.out = between(0, 1) == 1 ? DType::kF32 : DType::kBF16;
    c.spread = between(0, 1) == 1 ? 1.0f : 20.0f;
    c.padding = 8;
    c.sinks = between(0, 1) == 1;
    c.cap = between(0, 2) == 0 ? 1.7f : 0.0f;
    RunPaged(c);
  }
}

TEST_F(ShortChunks, OverLongContexts) {
  RunPaged({RowEncoding::kBF16, 128, 2, 4, 64, {{testing::Tokens(20000), 17}}, DType::kBF16});
  RunPaged({RowEncoding::kBF16, 64, 1, 8, 128, {{testing::Tokens(20000), 9}}});
  RunPaged({RowEncoding::kBF16, 256, 1, 1, 32, {{testing::Tokens(9000), 33}}});
}

}  // namespace
}  // namespace litecache::ops::cuda
