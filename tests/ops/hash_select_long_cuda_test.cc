// Selections by the hash codes of long contexts, against the CPU version.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/hash_select.h"
#include "ops/select/hash_softmax_select_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

// Long contexts of random codes, with several items per block and many blocks per pair, as launches
// and as a graph of several selections that overlap.
class LongHashSelectTest : public LiteCacheSelectTest {
 protected:
  // norm(): returns the norm of a key.
  template <class Norm>
  void BuildCodes(Random& random, const LiteCacheCase& c, const Norm& norm) {
    LiteCacheCase of_codes = c;
    of_codes.rows = false;
    of_codes.metadata_token_bytes = format_.token_bytes();
    of_codes.metadata_page_tokens = 2048 + 32 * Uniform(random, 0, 3);
    Build(random, of_codes);
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      for (int64_t page = 0; page < pages.lists * pages.blocks; ++page) {
        auto* block = pages.mirror.data() + static_cast<size_t>(page) * pages.page_bytes;
        for (int64_t t = 0; t < of_codes.metadata_page_tokens; t += HashFormat::kBlockTokens) {
          auto* words = reinterpret_cast<uint32_t*>(block);
          const int64_t count = HashFormat::kBlockTokens * format_.words();
          for (int64_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(random());
          auto* norms = reinterpret_cast<f16*>(words + count);
          for (int64_t i = 0; format_.norms && i < HashFormat::kBlockTokens; ++i) {
            norms[i] = f16(norm());
          }
          block += format_.block_bytes();
        }
      }
      Push(pages);
    }
    weights_.resize(static_cast<size_t>(c.kv_heads * c.head_dim * format_.bits));
    for (float& w : weights_) w = static_cast<float>(Uniform(random, -3, 3));
    device_weights_ = Upload(weights_);
    q_ = RandomQueries(random, true);
    queries_ = Queries(q_);
    scratch_ = Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
  }

  void Select(HashScore score, float scale) {
    const auto select = score == HashScore::kSum ? HashSelect : HashSoftmaxSelect;
    select(*stream_, step_, shape_, layer_, format_, device_weights_,
           {.q = &queries_, .scale = scale, .cap = cap_}, scratch_);
  }

  // The right number of distinct positions, in order.
  void CheckSizes(const std::vector<int32_t>& refresh) {
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t, int32_t,
                         const std::vector<int32_t>& got, const Selection& selection) {
                       ASSERT_EQ(static_cast<int64_t>(got.size()),
                                 std::min(selection.k, selection.end - selection.begin))
                           << where;
                       ASSERT_GE(got.front(), selection.begin) << where;
                       ASSERT_LT(got.back(), selection.end) << where;
                       for (size_t i = 1; i < got.size(); ++i) {
                         ASSERT_LT(got[i - 1], got[i]) << where << ", index " << i;
                       }
                     });
  }

  void Check(const std::string& what, const std::vector<int32_t>& refresh, HashScore score,
             float scale) {
    ForEachSelection(
        refresh, false,
        [&](const std::string& where, int32_t s, int32_t h, const std::vector<int32_t>& got,
            Selection selection) {
          const std::vector<std::byte*> host =
              PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
          HashSelectWork work{
              .q = QueryOf(q_, s, h),
              .scale = scale,
              .cap = cap_,
              .weight = weights_.data() + int64_t{h} * shape_.head_dim * format_.bits,
              .metadata = {host.data(), case_.metadata_page_tokens},
              .selection = selection};
          ops::HashSelect(*cpu_stream_, format_, score, shape_.group, shape_.head_dim, {&work, 1});
          if (score == HashScore::kSoftmax) {
            ExpectTop(what + ", " + where, got, work.selection, kSoftmaxTolerance);
            return;
          }
          ASSERT_EQ(static_cast<int64_t>(got.size()), work.selection.count)
              << what << ", " << where;
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], selection.positions[i])
                << what << ", " << where << ", index " << i << " of " << got.size();
          }
        });
  }

  HashFormat format_;
  float cap_ = 0;  // of kSoftmax
  std::vector<float> weights_, q_;
  const float* device_weights_ = nullptr;
  MatrixView queries_;
  void* scratch_ = nullptr;
};

TEST_F(LongHashSelectTest, AsTheCpu) {
  Random random = testing::TestRandom(17);
  const int32_t longest[] = {40000, 131072, 1000000};
  for (int round = 0; round < testing::Rounds(6); ++round) {
    LiteCacheCase c;
    c.kv_heads = round < 3 ? 3 : 1;
    c.group = round % 2 == 0 ? 4 : 5;
    c.past = {testing::Tokens(longest[round % 3] - Uniform(random, 0, 2000))};
    if (round < 2) {
      c.past.push_back(Uniform(random, 1, 300));
      c.past.push_back(testing::Tokens(Uniform(random, 1000, 30000)));
    }
    if (round == 1) c.resident = {2};
    format_ = {.bits = 256, .norms = round != 4};
    cap_ = CapIn(round);
    // Few distinct norms: equal scores. Round 5: norms of very different sizes.
    const auto norm = [&] {
      if (round == 5) return std::ldexp(1.0f, Uniform(random, -14, 14));
      return static_cast<float>(Uniform(random, 1, 12));
    };
    BuildCodes(random, c, norm);
    const float scale = 1.0f / static_cast<float>(c.head_dim);
    for (const HashScore score : {HashScore::kSum, HashScore::kSoftmax}) {
      if (score == HashScore::kSoftmax && !format_.norms) continue;
      const std::vector<int32_t> refresh = RandomRefresh(random);
      Select(score, scale);
      if (round == 5 && score == HashScore::kSoftmax) {
        CheckSizes(refresh);  // most shares are too small for a float
      } else {
        Check("round " + std::to_string(round), refresh, score, scale);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Scores with one value, with two, and so far apart that most are in the histogram's first bins.
TEST_F(LongHashSelectTest, OfFewOrExtremeScores) {
  Random random = testing::TestRandom(18);
  for (int round = 0; round < testing::Rounds(6); ++round) {
    LiteCacheCase c;
    c.kv_heads = 2;
    c.past = {testing::Tokens(Uniform(random, 9000, 20000)), Uniform(random, 100, 3000)};
    c.share = round % 2 == 0 ? 0.1 : 0.7;
    format_ = {.bits = 128, .norms = true};
    const float norms[][2] = {{0, 0},         {0, 1},         {1e-7f, 60000},
                              {1e-6f, 1e-5f}, {60000, 65504}, {0, 60000}};
    BuildCodes(random, c, [&] { return norms[round][Uniform(random, 0, 9) == 0 ? 1 : 0]; });
    for (const HashScore score : {HashScore::kSum, HashScore::kSoftmax}) {
      const std::vector<int32_t> refresh = RandomRefresh(random);
      // Shares of a peaked softmax extend to the smallest numbers.
      const float scale = score == HashScore::kSum ? 1 : 0.0005f;
      Select(score, scale);
      if (score == HashScore::kSum) {
        Check("round " + std::to_string(round), refresh, score, scale);
      } else {
        CheckSizes(refresh);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Kernels of a graph may begin before earlier ones have ended.
TEST_F(LongHashSelectTest, ManyInAGraph) {
  Random random = testing::TestRandom(19);
  LiteCacheCase c;
  c.kv_heads = 4;
  c.past = {testing::Tokens(30000), 200, testing::Tokens(7777)};
  format_ = {.bits = 256, .norms = true};
  BuildCodes(random, c, [&] { return static_cast<float>(Uniform(random, 1, 12)); });
  const float scale = 1.0f / static_cast<float>(c.head_dim);
  for (const HashScore score : {HashScore::kSum, HashScore::kSoftmax}) {
    for (int round = 0; round < testing::Rounds(5); ++round) {
      // None, some, all.
      std::vector<int32_t> refresh = RandomRefresh(random);
      if (round == 2 || round == 4) std::fill(refresh.begin(), refresh.end(), round == 2 ? 0 : 1);
      gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
      AsCuda(*stream_).Run(score == HashScore::kSum ? 1 : 2, [&] {
        for (int i = 0; i < 3; ++i) Select(score, scale);
      });
      Check("round " + std::to_string(round), refresh, score, scale);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
