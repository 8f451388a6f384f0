// Selection by the rows' exact attention, against the CPU version.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/exact_select.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(LiteCacheSelectTest, ExactSelection) {
  Random random = testing::TestRandom(13);
  const RowEncoding stores[] = {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8,
                                RowEncoding::kF32, RowEncoding::kInt4};
  for (int round = 0; round < testing::Rounds(10); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.by_need = round % 4 == 1;
    c.store = stores[round % 5];
    if (c.store == RowEncoding::kF32) c.encoding = RowEncoding::kF32;
    for (int32_t& past : c.past) past = std::min(past, 1500);
    Build(random, c);
    const std::vector<int32_t> refresh = RandomRefresh(random);
    const std::vector<float> q = RandomQueries(random, false);
    const MatrixView queries = Queries(q);
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)), cap = CapIn(round);
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    ExactSelect(*stream_, step_, shape_, layer_, {.q = &queries, .scale = scale, .cap = cap},
                scratch);
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const RowTable& table = IsOffloaded(h) ? layer_.store : layer_.resident;
                       const int32_t n = views_[static_cast<size_t>(s)].past + c.growth;
                       std::vector<std::byte> rows;
                       for (int32_t t = 0; t < n; ++t) {
                         const std::vector<std::byte> row = WholeRow(s, table, ListOf(h), t);
                         rows.insert(rows.end(), row.begin(), row.end());
                       }
                       std::byte* const page = rows.data();
                       ExactSelectWork work{.q = QueryOf(q, s, h),
                                            .scale = scale,
                                            .cap = cap,
                                            .rows = {&page, n, WholeFormat(table)},
                                            .selection = selection};
                       ops::ExactSelect(*cpu_stream_, c.group, {&work, 1});
                       ExpectTop(where + ", " + std::string(Name(c.store)), got, work.selection,
                                 kSoftmaxTolerance);
                     });
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
