// Retrievers through their interface: metadata across page boundaries, costs, recall, and errors.
// The scores are tested in tests/ops/*_select_test.cc.
#include "kv/retrieve/retriever.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "kv/heads/profile.h"
#include "litecache/kv_options.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kPageBytes = 16384;
const char* const kNames[] = {"exact", "hata", "keys", "keys2", "quest", "loki"};

Layout TestLayout(int64_t head_dim = 64, int64_t group = 4) {
  return {
      .layers = 2, .q_heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .dtype = DType::kF32};
}

KvOptions WithRetriever(const std::string& name) {
  KvOptions options;
  options.hata_bits = 128;
  options.retriever = name;
  return options;
}

// One KV head's keys in f32 rows, and the retriever's metadata for them.
class Head {
 public:
  Head(const Layout& layout, int64_t metadata_tokens, int64_t tokens)
      : head_dim_(layout.head_dim), metadata_tokens_(metadata_tokens) {
    rows_.resize(static_cast<size_t>(tokens * 2 * head_dim_));
    row_page_ = reinterpret_cast<std::byte*>(rows_.data());
    for (int64_t t = 0; metadata_tokens > 0 && t < tokens; t += metadata_tokens) {
      memory_.emplace_back(kPageBytes, std::byte{0xff});
    }
    for (auto& page : memory_) pages_.push_back(page.data());
    tokens_ = tokens;
  }

  float* Key(int64_t t) { return rows_.data() + t * 2 * head_dim_; }
  EncodeWork Encode(int64_t layer, int64_t head, int64_t begin, int64_t count) {
    return {.layer = layer,
            .head = head,
            .keys = Key(begin),
            .key_stride = 2 * head_dim_,
            .begin = begin,
            .count = count,
            .metadata = pages_.data()};
  }
  SelectWork Select(int64_t layer, int64_t head, const float* q, int64_t begin, int64_t end,
                    int64_t k, int32_t* positions) {
    return {.layer = layer,
            .head = head,
            .q = q,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim_)),
            .begin = begin,
            .end = end,
            .k = k,
            .metadata = pages_.data(),
            .rows = {&row_page_, tokens_, {ops::RowEncoding::kF32, head_dim_}},
            .positions = positions};
  }
  const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

 private:
  int64_t head_dim_, metadata_tokens_, tokens_;
  std::vector<float> rows_;
  std::byte* row_page_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> pages_;
};

// Keys in clusters with a common direction, most of them on runs of neighbours, and queries for one
// of the clusters: the case that top-k retrieval is made for.
struct Clusters {
  Clusters(std::mt19937_64& random, int64_t head_dim) : random(random), head_dim(head_dim) {
    for (auto& center : centers) {
      for (int64_t c = 0; c < head_dim; ++c) center.push_back(2 * normal(random));
    }
  }
  void Key(int64_t t, float* out) {
    if (t % 24 == 0) current = static_cast<size_t>(random() % centers.size());
    for (int64_t c = 0; c < head_dim; ++c) {
      out[c] = centers[current][static_cast<size_t>(c)] + normal(random);
    }
  }
  std::vector<float> Queries(int64_t group) {
    const auto& center = centers[random() % centers.size()];
    std::vector<float> q;
    for (int64_t i = 0; i < group * head_dim; ++i) {
      q.push_back(center[static_cast<size_t>(i % head_dim)] + normal(random));
    }
    return q;
  }
  std::mt19937_64& random;
  int64_t head_dim;
  std::normal_distribution<float> normal;
  std::array<std::vector<float>, 20> centers;
  size_t current = 0;
};

TEST(Retriever, FindsMostOfWhatTheExactOneFinds) {
  constexpr int64_t kTokens = 6000, kBegin = 4, kEnd = kTokens - 64, kK = 594;
  auto random = litecache::testing::TestRandom(31);
  for (int64_t head_dim : {64, 80, 128}) {
    for (int64_t group : {1, 4}) {
      const Layout layout = TestLayout(head_dim, group);
      CpuDevice device(2);
      auto stream = device.CreateStream();
      Clusters clusters(random, head_dim);
      std::vector<float> keys(static_cast<size_t>(kTokens * head_dim));
      for (int64_t t = 0; t < kTokens; ++t) clusters.Key(t, keys.data() + t * head_dim);
      std::vector<std::vector<float>> queries;
      for (int i = 0; i < 8; ++i) queries.push_back(clusters.Queries(group));

      std::vector<std::vector<int32_t>> exact;
      for (const std::string name : kNames) {
        SCOPED_TRACE(name + ", head_dim " + std::to_string(head_dim) + ", group " +
                     std::to_string(group));
        const auto retriever = CreateRetriever(layout, WithRetriever(name), nullptr, kPageBytes);
        Head head(layout, retriever->metadata_tokens(), kTokens);
        for (int64_t t = 0; t < kTokens; ++t) {
          std::copy_n(keys.data() + t * head_dim, head_dim, head.Key(t));
        }
        const EncodeWork encode = head.Encode(1, 1, 0, kTokens);
        retriever->Encode(*stream, {&encode, 1});
        double recall = 0;
        for (size_t i = 0; i < queries.size(); ++i) {
          std::vector<int32_t> positions(kK);
          SelectWork work =
              head.Select(1, 1, queries[i].data(), kBegin, kEnd, kK, positions.data());
          retriever->Select(*stream, {&work, 1});
          ASSERT_LE(work.count, kK);
          ASSERT_GT(work.count, kK - 48);  // quest: whole blocks, with the outer ones cut
          positions.resize(static_cast<size_t>(work.count));
          ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end()));
          ASSERT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
          ASSERT_GE(positions.front(), kBegin);
          ASSERT_LT(positions.back(), kEnd);
          if (name == "exact") {
            exact.push_back(positions);
            continue;
          }
          std::vector<int32_t> shared;
          std::set_intersection(positions.begin(), positions.end(), exact[i].begin(),
                                exact[i].end(), std::back_inserter(shared));
          recall += static_cast<double>(shared.size()) / kK / static_cast<double>(queries.size());
        }
        if (name == "exact") continue;
        std::cout << name << ", head_dim " << head_dim << ", group " << group << ": recall "
                  << recall << "\n";
        // Chance level is a tenth; 150 draws gave between 0.48 and 0.74.
        EXPECT_GT(recall, 0.35);
      }
    }
  }
}

TEST(Retriever, EncodingInPartsAndAgainIsTheSame) {
  constexpr int64_t kTokens = 2100;
  auto random = litecache::testing::TestRandom(32);
  std::normal_distribution<float> normal;
  for (const std::string name : {"hata", "keys", "quest", "loki"}) {
    SCOPED_TRACE(name);
    const Layout layout = TestLayout();
    CpuDevice device(3);
    auto stream = device.CreateStream();
    const auto retriever = CreateRetriever(layout, WithRetriever(name), nullptr, kPageBytes);
    ASSERT_GT(retriever->metadata_tokens(), 0);
    ASSERT_LT(retriever->metadata_tokens(), kTokens) << "no page boundary to cross";
    Head whole(layout, retriever->metadata_tokens(), kTokens);
    Head parts(layout, retriever->metadata_tokens(), kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < layout.head_dim; ++c) parts.Key(t)[c] = normal(random);
      std::copy_n(parts.Key(t), layout.head_dim, whole.Key(t));
    }
    const EncodeWork all = whole.Encode(0, 1, 0, kTokens);
    retriever->Encode(*stream, {&all, 1});
    for (int64_t begin = 0; begin < kTokens;) {
      const auto count =
          std::min<int64_t>(1 + static_cast<int64_t>(random() % 90), kTokens - begin);
      const EncodeWork part = parts.Encode(0, 1, begin, count);
      retriever->Encode(*stream, {&part, 1});
      if (random() % 2 == 0) retriever->Encode(*stream, {&part, 1});
      begin += count;
    }
    EXPECT_EQ(whole.memory(), parts.memory());
  }
}

TEST(Retriever, WorkOfManyHeadsAndThreadsDoesNotMix) {
  constexpr int64_t kTokens = 3000;
  auto random = litecache::testing::TestRandom(33);
  const Layout layout = TestLayout(64, 2);
  Clusters clusters(random, layout.head_dim);
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const auto retriever = CreateRetriever(layout, WithRetriever(name), nullptr, kPageBytes);
    std::vector<Head> heads;
    std::vector<std::vector<float>> queries;
    CpuDevice one(1);
    auto alone = one.CreateStream();
    for (int64_t i = 0; i < 13; ++i) {
      Head& head = heads.emplace_back(layout, retriever->metadata_tokens(), kTokens);
      for (int64_t t = 0; t < kTokens; ++t) clusters.Key(t, head.Key(t));
      queries.push_back(clusters.Queries(2));
    }
    std::vector<EncodeWork> encode;
    for (int64_t i = 0; i < 13; ++i)
      encode.push_back(heads[static_cast<size_t>(i)].Encode(i % 2, i / 2 % 2, 0, kTokens));
    retriever->Encode(*alone, encode);
    const auto select = [&](int64_t i, int32_t* positions) {
      return heads[static_cast<size_t>(i)].Select(i % 2, i / 2 % 2,
                                                  queries[static_cast<size_t>(i)].data(), i * 37,
                                                  kTokens - i * 11, 50 + i, positions);
    };
    std::vector<std::vector<int32_t>> expected;
    for (int64_t i = 0; i < 13; ++i) {
      auto& positions = expected.emplace_back(static_cast<size_t>(50 + i));
      SelectWork work = select(i, positions.data());
      retriever->Select(*alone, {&work, 1});
      positions.resize(static_cast<size_t>(work.count));
    }
    for (int threads : {1, 2, 5}) {
      CpuDevice device(threads);
      auto stream = device.CreateStream();
      std::vector<std::vector<int32_t>> positions(13);
      std::vector<SelectWork> work;
      for (int64_t i = 0; i < 13; ++i) {
        auto& of_head = positions[static_cast<size_t>(i)];
        of_head.resize(static_cast<size_t>(50 + i));
        work.push_back(select(i, of_head.data()));
      }
      retriever->Select(*stream, work);
      for (size_t i = 0; i < 13; ++i) positions[i].resize(static_cast<size_t>(work[i].count));
      EXPECT_EQ(positions, expected) << threads << " threads";
    }
  }
}

TEST(Retriever, MetadataCostsWhatItSays) {
  const Layout layout = TestLayout(64);
  struct Case {
    const char* name;
    int bits;
    bool norms;
    double bytes;
  };
  for (const Case& c :
       {Case{"exact", 128, true, 0}, Case{"hata", 128, true, 18}, Case{"hata", 256, false, 32},
        Case{"keys", 128, true, 34}, Case{"keys2", 128, true, 18}, Case{"quest", 128, true, 16},
        Case{"loki", 128, true, 32}}) {
    KvOptions options = WithRetriever(c.name);
    options.hata_bits = c.bits;
    options.hata_norms = c.norms;
    const auto retriever = CreateRetriever(layout, options, nullptr, kPageBytes);
    EXPECT_EQ(retriever->name(), c.name);
    EXPECT_EQ(retriever->metadata_bytes_per_token(), c.bytes);
    EXPECT_LE(static_cast<double>(retriever->metadata_tokens()) * c.bytes, kPageBytes);
    EXPECT_EQ(retriever->metadata_tokens() % 16, 0);
    const double scored = c.bytes > 0 ? c.bytes : 64 * 4;  // exact reads the keys
    EXPECT_EQ(retriever->BytesScored(1600), static_cast<uint64_t>(1600 * scored));
  }
}

TEST(Retriever, TakesItsWeightsFromTheProfile) {
  // Two heads of layer 1 hash with opposite weights, which changes every bit, so that the same
  // metadata gives the most and the least similar keys.
  const Layout layout = TestLayout(64, 1);
  auto random = litecache::testing::TestRandom(34);
  std::normal_distribution<float> normal;
  constexpr int64_t kSize = 64 * 128;
  std::vector<float> weight(kSize);
  for (float& x : weight) x = normal(random);
  Profile profile;
  for (int i = 0; i < 4; ++i) {
    for (float x : weight) profile.hata[128].push_back(i == 3 ? -x : x);
  }
  KvOptions options = WithRetriever("hata");
  options.hata_norms = false;
  const auto retriever = CreateRetriever(layout, options, &profile, kPageBytes);
  constexpr int64_t kTokens = 200;
  Head head(layout, retriever->metadata_tokens(), kTokens);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < 64; ++c) head.Key(t)[c] = normal(random);
  }
  std::vector<float> q(head.Key(117), head.Key(117) + 64);
  CpuDevice device(1);
  auto stream = device.CreateStream();
  const EncodeWork encode = head.Encode(1, 0, 0, kTokens);
  retriever->Encode(*stream, {&encode, 1});
  int32_t position = -1;
  SelectWork work = head.Select(1, 0, q.data(), 0, kTokens, 1, &position);
  retriever->Select(*stream, {&work, 1});
  EXPECT_EQ(position, 117);
  work = head.Select(1, 1, q.data(), 0, kTokens, 1, &position);
  retriever->Select(*stream, {&work, 1});
  EXPECT_NE(position, 117);
  std::vector<int32_t> positions(kTokens - 1);
  work = head.Select(1, 1, q.data(), 0, kTokens, kTokens - 1, positions.data());
  retriever->Select(*stream, {&work, 1});
  EXPECT_FALSE(std::binary_search(positions.begin(), positions.end(), 117)) << "least similar now";
}

TEST(Retriever, LokiUsesTheBasisOfTheProfile) {
  // The basis of head 3 begins with the last channels: keys that differ only in those are found.
  const Layout layout = TestLayout(64, 1);
  Profile profile;
  profile.loki.resize(4 * 64 * 64);
  for (size_t c = 0; c < 64; ++c) profile.loki[(3 * 64 + c) * 64 + 63 - c] = 1;
  const auto retriever = CreateRetriever(layout, WithRetriever("loki"), &profile, kPageBytes);
  constexpr int64_t kTokens = 100;
  Head head(layout, retriever->metadata_tokens(), kTokens);
  for (int64_t t = 0; t < kTokens; ++t) head.Key(t)[60] = t == 41 ? 3.0f : 1.0f;
  std::vector<float> q(64, 1.0f);
  CpuDevice device(1);
  auto stream = device.CreateStream();
  const EncodeWork encode = head.Encode(1, 1, 0, kTokens);
  retriever->Encode(*stream, {&encode, 1});
  int32_t position = -1;
  SelectWork work = head.Select(1, 1, q.data(), 1, kTokens, 1, &position);
  retriever->Select(*stream, {&work, 1});
  EXPECT_EQ(position, 41);
}

template <class Error>
std::string MessageOf(const KvOptions& options, const Profile* profile = nullptr,
                      uint64_t page_bytes = kPageBytes) {
  try {
    CreateRetriever(TestLayout(), options, profile, page_bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Retriever, ErrorsNameTheFix) {
  EXPECT_THAT(MessageOf<InvalidArgument>(WithRetriever("fancy")),
              AllOf(HasSubstr("'fancy'"), HasSubstr("exact, hata, keys, keys2, quest, loki")));
  Profile profile;
  profile.hata[128].resize(4 * 64 * 128);
  KvOptions options = WithRetriever("hata");
  options.hata_bits = 256;
  EXPECT_THAT(MessageOf<InvalidArgument>(options, &profile),
              AllOf(HasSubstr("256"), HasSubstr("128"), HasSubstr("`litecache profile`")));
  options.hata_bits = 100;
  EXPECT_THAT(MessageOf<InvalidArgument>(options), HasSubstr("128 or 256"));
  EXPECT_THAT(MessageOf<InvalidArgument>(WithRetriever("loki"), &profile),
              HasSubstr("`litecache profile`"));
  options = WithRetriever("loki");
  options.loki_rank = 65;
  EXPECT_THAT(MessageOf<InvalidArgument>(options), AllOf(HasSubstr("65"), HasSubstr("64")));
  for (const char* name : {"hata", "keys", "quest", "loki"}) {
    EXPECT_THAT(MessageOf<InvalidArgument>(WithRetriever(name), nullptr, 128),
                AllOf(HasSubstr(name), HasSubstr("too small")));
  }
}

}  // namespace
}  // namespace litecache::kv
