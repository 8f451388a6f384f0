// Bounds of blocks and the selection by them, against the CPU versions.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/bounds_select.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

// Bounds are exact, and scores add the same terms as the CPU in the same order.
TEST_F(LiteCacheSelectTest, BoundsAndSelection) {
  Random random = testing::TestRandom(14);
  for (int round = 0; round < testing::Rounds(12); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    const BoundsFormat format{.head_dim = c.head_dim};
    c.metadata_token_bytes = format.group_bytes() / BoundsFormat::kGroupTokens;
    c.metadata_page_tokens = 2 * BoundsFormat::kGroupTokens;
    Build(random, c);
    const bool whole = round % 2 == 0;  // whole numbers: many equal scores
    std::normal_distribution<float> normal;
    const auto keys = EncodePrompt(
        [&] { return whole ? static_cast<float>(Uniform(random, -2, 2)) : normal(random); },
        [&](const MatrixView& k) { BoundsEncode(*stream_, step_, shape_, layer_, format, &k); });
    const int64_t cols = int64_t{c.kv_heads} * c.head_dim;
    CheckMetadata(
        keys, [&](const std::vector<float>& of_sequence, int32_t h, const PagedMetadata& metadata) {
          const BoundsEncodeWork work{.keys = of_sequence.data() + int64_t{h} * c.head_dim,
                                      .key_stride = cols,
                                      .begin = 0,
                                      .count = static_cast<int64_t>(of_sequence.size()) / cols,
                                      .metadata = metadata};
          ops::BoundsEncode(*cpu_stream_, format, {&work, 1});
        });
    if (HasFatalFailure()) return;
    const std::vector<int32_t> refresh = RandomRefresh(random);
    const std::vector<float> q = RandomQueries(random, true);
    const MatrixView queries = Queries(q);
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    BoundsSelect(*stream_, step_, shape_, layer_, format, {.q = &queries, .scale = 1}, scratch);
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const std::vector<std::byte*> host =
                           PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
                       selection.scores = nullptr;
                       BoundsSelectWork work{.q = QueryOf(q, s, h),
                                             .metadata = {host.data(), c.metadata_page_tokens},
                                             .selection = selection};
                       ops::BoundsSelect(*cpu_stream_, format, c.group, {&work, 1});
                       const std::vector<int32_t> want(selection.positions,
                                                       selection.positions + work.selection.count);
                       ASSERT_EQ(got.size(), want.size()) << where;
                       for (size_t i = 0; i < got.size(); ++i) {
                         ASSERT_EQ(got[i], want[i])
                             << where << ", index " << i << " of " << got.size();
                       }
                     });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
