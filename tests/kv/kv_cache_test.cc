// The public interface of the KV cache; its implementation is tested separately.

#include "litecache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "kv/heads/profile.h"
#include "test_seed.h"

namespace litecache {
namespace {

constexpr KvShape kShape{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .f32_rows = true};

KvOptions Options(const std::string& policy) {
  KvOptions options;
  options.policy = policy;
  options.retriever = "quest";
  options.budget = KvBudget::Parse("100%");
  options.device_memory = 64 << 20;
  options.host_memory = 64 << 20;
  return options;
}

TEST(KvCache, PoliciesAgreeWhenEverythingFits) {
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  KvOptions lite_options = Options("litecache");
  lite_options.prefetch = "1";
  const auto full = KvCache::Create(kShape, Options("full"), 1);
  const auto lite = KvCache::Create(kShape, lite_options, 2);
  std::vector<int64_t> ids;
  const auto create = [&](int64_t parent) {
    for (KvCache* cache : {full.get(), lite.get()}) {
      const int64_t id = parent == 0 ? cache->CreateSequence() : cache->ForkSequence(parent);
      if (cache == full.get()) ids.push_back(id);
      EXPECT_EQ(id, ids.back());
    }
  };
  const auto step = [&](const std::vector<KvPart>& parts) {
    int64_t rows = 0;
    for (const KvPart& part : parts) rows += part.rows;
    const auto draw = [&](int64_t columns) {
      std::vector<float> values(static_cast<size_t>(rows * columns));
      for (float& x : values) x = normal(random);
      return values;
    };
    for (KvCache* cache : {full.get(), lite.get()}) cache->BeginStep(parts);
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto q = draw(128), k = draw(64), v = draw(64);
      std::vector<float> a(q.size(), NAN), b(q.size(), NAN);
      EXPECT_EQ(full->PredictionSource(layer), -1);
      EXPECT_EQ(lite->PredictionSource(layer), layer == 1 ? 0 : -1);
      full->Attend(layer, q.data(), k.data(), v.data(), 0.18f, a.data());
      if (layer == 0) lite->Prefetch(1, q.data(), 0.18f);
      lite->Attend(layer, q.data(), k.data(), v.data(), 0.18f, b.data());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-5);
    }
    for (KvCache* cache : {full.get(), lite.get()}) cache->EndStep();
  };
  create(0);
  create(0);
  step({{.sequence = ids[0], .rows = 100}, {.sequence = ids[1], .rows = 3}});
  create(ids[0]);
  for (int i = 0; i < 80; ++i) {
    step({{.sequence = ids[0], .decode = true},
          {.sequence = ids[2], .decode = true},
          {.sequence = ids[1], .rows = 2}});
  }
  EXPECT_EQ(lite->Length(ids[0]), 180);
  EXPECT_EQ(lite->Length(ids[1]), 163);
  EXPECT_EQ(lite->Heads().size(), 4u);
  EXPECT_TRUE(full->Heads().empty());
  EXPECT_LE(lite->GetStats().used.host, (2 * lite->BytesFor(180) + 1 * lite->BytesFor(163)).host);
  for (const int64_t id : ids) lite->ReleaseSequence(id);
  EXPECT_EQ(lite->GetStats().used, kv::TierBytes{});
}

// Arrays of 16 bits give what f32 arrays with the same values give, rounded.
template <typename T>
void ConvertArrays(KvElement element) {
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  const auto narrow = KvCache::Create(kShape, Options("full"), 2);
  const auto wide = KvCache::Create(kShape, Options("full"), 2);
  const int64_t id = narrow->CreateSequence();
  ASSERT_EQ(wide->CreateSequence(), id);
  for (const int64_t rows : {7, 1, 101, 1}) {
    const KvPart part{.sequence = id, .rows = rows, .decode = rows == 1};
    for (KvCache* cache : {narrow.get(), wide.get()}) cache->BeginStep({&part, 1});
    for (int64_t layer = 0; layer < kShape.layers; ++layer) {
      std::vector<T> given[3], out(static_cast<size_t>(rows * 128));
      std::vector<float> same[3], want(out.size());
      for (int i = 0; i < 3; ++i) {
        for (int64_t c = 0; c < rows * (i == 0 ? 128 : 64); ++c) {
          given[i].push_back(T(normal(random)));
          same[i].push_back(static_cast<float>(given[i].back()));
        }
      }
      narrow->Attend(layer, element, given[0].data(), given[1].data(), given[2].data(), 0.18f,
                     out.data());
      wide->Attend(layer, same[0].data(), same[1].data(), same[2].data(), 0.18f, want.data());
      for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, T(want[i]).bits) << rows;
    }
    for (KvCache* cache : {narrow.get(), wide.get()}) cache->EndStep();
  }
}

TEST(KvCache, ConvertsArraysOf16Bits) {
  ConvertArrays<bf16>(KvElement::kBF16);
  ConvertArrays<f16>(KvElement::kF16);
}

TEST(KvCache, WrongCallsAreErrorsThatSayWhy) {
  const auto cache = KvCache::Create(kShape, Options("litecache"), 1);
  const int64_t id = cache->CreateSequence();
  std::vector<float> values(128);
  float* x = values.data();
  EXPECT_THROW(cache->Attend(0, x, x, x, 1, x), InvalidArgument);
  EXPECT_THROW(cache->EndStep(), InvalidArgument);
  const auto begin = [&](const KvPart& part) { cache->BeginStep({&part, 1}); };
  EXPECT_THROW(begin({.sequence = 99}), InvalidArgument);
  EXPECT_THROW(begin({.sequence = id, .rows = 0}), InvalidArgument);
  EXPECT_THROW(begin({.sequence = id, .rows = 2, .decode = true}), InvalidArgument);
  EXPECT_THROW(begin({.sequence = id, .rows = int64_t{1} << 40}), CapacityError);
  EXPECT_THROW(cache->Attend(0, x, x, x, 1, x), InvalidArgument);  // no step has begun
  begin({.sequence = id});
  EXPECT_THROW(cache->Attend(2, x, x, x, 1, x), InvalidArgument);
  EXPECT_THROW(cache->Prefetch(0, x, 1), InvalidArgument);
  // Every layer once, in order.
  EXPECT_THROW(cache->Attend(1, x, x, x, 1, x), InvalidArgument);
  cache->Attend(0, x, x, x, 1, x);
  EXPECT_THROW(cache->Attend(0, x, x, x, 1, x), InvalidArgument);
  EXPECT_THROW(cache->EndStep(), InvalidArgument);
  EXPECT_EQ(cache->Length(id), 0);
  cache->Attend(1, x, x, x, 1, x);
  cache->EndStep();
  EXPECT_EQ(cache->Length(id), 1);
}

TEST(KvCache, OptionsThatCannotWorkAreErrors) {
  KvOptions options = Options("litecache");
  options.host_memory = 0;
  EXPECT_THROW(KvCache::Create(kShape, options), InvalidArgument);
  options = Options("full");
  options.host_memory = 0;
  EXPECT_NO_THROW(KvCache::Create(kShape, options));
  options.device_memory = 0;
  EXPECT_THROW(KvCache::Create(kShape, options), InvalidArgument);
  EXPECT_THROW(
      KvCache::Create({.layers = 1, .q_heads = 3, .kv_heads = 2, .head_dim = 8}, Options("full")),
      InvalidArgument);
  options = Options("litecache");
  options.profile = "/nonexistent/profile.safetensors";
  EXPECT_THROW(KvCache::Create(kShape, options), FileError);

  // A profile of another model.
  kv::Profile profile;
  profile.layers = 3;
  profile.q_heads = 4;
  profile.kv_heads = 2;
  profile.head_dim = 32;
  const auto path = std::filesystem::temp_directory_path() /
                    ("litecache_kv_cache_test." + std::to_string(testing::TestSeed()));
  profile.Save(path);
  options.profile = path.string();
  EXPECT_THROW(KvCache::Create(kShape, options), FileError);
  profile.layers = 2;
  profile.Save(path);
  EXPECT_NO_THROW(KvCache::Create(kShape, options));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace litecache
