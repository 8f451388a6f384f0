// Keys in a few bits a channel and the selection by them, against their CPU twins.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/keys_select.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

class KeysSelectTest : public LiteCacheSelectTest {
 protected:
  // Sums over a key's channels are in another order than the CPU's: of a thousand codes and scales
  // a few may be rounded to the neighbour.
  void ExpectMetadataOfTwin(const KeysFormat& format, const std::vector<float>& rotation,
                            const std::vector<std::vector<float>>& keys) {
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      const std::vector<std::byte> got = (Pull(pages), pages.mirror);
      const std::vector<float>& of_sequence = keys[static_cast<size_t>(s)];
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        if (metadata_[static_cast<size_t>(h)] < 0) continue;
        const std::vector<std::byte*> host = pages.HostList(metadata_[static_cast<size_t>(h)]);
        const KeysEncodeWork work{.keys = of_sequence.data() + int64_t{h} * shape_.head_dim,
                                  .key_stride = cols,
                                  .begin = 0,
                                  .count = static_cast<int64_t>(of_sequence.size()) / cols,
                                  .rotation = rotation.data(),
                                  .metadata = {host.data(), case_.metadata_page_tokens}};
        ops::KeysEncode(*cpu_stream_, format, {&work, 1});
      }
      size_t differing = 0;
      for (size_t i = 0; i < got.size(); ++i) differing += got[i] != pages.mirror[i];
      ASSERT_LE(differing, got.size() / 200 + 8) << case_.Name() << ", sequence " << s;
      pages.mirror = got;
    }
  }
};

TEST_F(KeysSelectTest, KeysAndSelection) {
  Random random = testing::TestRandom(16);
  std::normal_distribution<float> normal;
  for (int round = 0; round < testing::Rounds(12); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    const int64_t dims[] = {64, 128, 80, 96, 256};
    c.head_dim = static_cast<int32_t>(dims[round % 5]);
    const KeysFormat format{.head_dim = c.head_dim, .bits = round % 2 == 0 ? 4 : 2};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    const std::vector<float> rotation = KeysRotation(c.head_dim);
    const float* device_rotation = Upload(rotation);
    // Every key shares a part.
    const auto keys =
        EncodePrompt([&] { return normal(random) + 3; },
                     [&](const MatrixView& k) {
                       KeysEncode(*stream_, step_, shape_, layer_, format, device_rotation, &k);
                     });
    ExpectMetadataOfTwin(format, rotation, keys);
    if (HasFatalFailure()) return;
    const std::vector<int32_t> refresh = RandomRefresh(random);
    const std::vector<float> q = RandomQueries(random, false);
    const MatrixView queries = Queries(q);
    const float scale = 0.5f / std::sqrt(static_cast<float>(c.head_dim));
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    KeysSelect(*stream_, step_, shape_, layer_, format, device_rotation,
               {.q = &queries, .scale = scale}, scratch);
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const std::vector<std::byte*> host =
                           PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
                       KeysSelectWork work{.q = QueryOf(q, s, h),
                                           .rotation = rotation.data(),
                                           .scale = scale,
                                           .metadata = {host.data(), c.metadata_page_tokens},
                                           .selection = selection};
                       ops::KeysSelect(*cpu_stream_, format, c.group, {&work, 1});
                       ExpectTop(where + ", " + std::to_string(format.bits) + " bits", got,
                                 work.selection, kSoftmaxTolerance);
                     });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
