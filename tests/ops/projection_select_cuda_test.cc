// Leading components and the selection by them, against the CPU versions.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/projection_select.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(LiteCacheSelectTest, ProjectionAndSelection) {
  Random random = testing::TestRandom(15);
  for (int round = 0; round < testing::Rounds(8); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    const int64_t ranks[] = {16, 32, 7, 33};
    const ProjectionFormat format{.rank = ranks[round % 4]};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    // Whole numbers: components are exact before they are rounded to bf16.
    std::vector<float> basis(static_cast<size_t>(c.kv_heads * c.head_dim * format.basis_stride()));
    for (size_t i = 0; i < basis.size(); ++i) {
      const bool counts = static_cast<int64_t>(i) % format.basis_stride() < format.rank;
      basis[i] = counts ? static_cast<float>(Uniform(random, -2, 2)) : 0;
    }
    const float* device_basis = Upload(basis);
    const auto keys =
        EncodePrompt([&] { return static_cast<float>(Uniform(random, -5, 5)); },
                     [&](const MatrixView& k) {
                       ProjectionEncode(*stream_, step_, shape_, layer_, format, device_basis, &k);
                     });
    const int64_t cols = int64_t{c.kv_heads} * c.head_dim;
    const auto basis_of = [&](int32_t h) {
      return basis.data() + int64_t{h} * c.head_dim * format.basis_stride();
    };
    CheckMetadata(
        keys, [&](const std::vector<float>& of_sequence, int32_t h, const PagedMetadata& metadata) {
          const ProjectionEncodeWork work{.keys = of_sequence.data() + int64_t{h} * c.head_dim,
                                          .key_stride = cols,
                                          .begin = 0,
                                          .count = static_cast<int64_t>(of_sequence.size()) / cols,
                                          .basis = basis_of(h),
                                          .metadata = metadata};
          ops::ProjectionEncode(*cpu_stream_, format, c.head_dim, {&work, 1});
        });
    if (HasFatalFailure()) return;
    const std::vector<int32_t> refresh = RandomRefresh(random);
    const std::vector<float> q = RandomQueries(random, false);
    const MatrixView queries = Queries(q);
    // Products have a size of about head_dim^1.5 * rank^0.5 * 10: exponents of a few units.
    const float scale =
        0.02f / (static_cast<float>(c.head_dim) * std::sqrt(static_cast<float>(format.rank)));
    const float cap = CapIn(round);
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    ProjectionSelect(*stream_, step_, shape_, layer_, format, device_basis,
                     {.q = &queries, .scale = scale, .cap = cap}, scratch);
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const std::vector<std::byte*> host =
                           PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
                       ProjectionSelectWork work{.q = QueryOf(q, s, h),
                                                 .basis = basis_of(h),
                                                 .scale = scale,
                                                 .cap = cap,
                                                 .metadata = {host.data(), c.metadata_page_tokens},
                                                 .selection = selection};
                       ops::ProjectionSelect(*cpu_stream_, format, c.group, c.head_dim, {&work, 1});
                       ExpectTop(where + ", rank " + std::to_string(format.rank), got,
                                 work.selection, kSoftmaxTolerance);
                     });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
