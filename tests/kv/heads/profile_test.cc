// The profile's file: it is read back as written, and other files are rejected.
#include "kv/heads/profile.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

using ::litecache::testing::TemporaryDirectory;

std::vector<float> Uniform(std::mt19937_64& random, size_t count, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

constexpr size_t kL = 3, kHq = 6, kHkv = 2, kD = 7, kG = 5;
const Layout kLayout{3, 6, 2, 7, DType::kBF16};

Profile RandomProfile(std::mt19937_64& random) {
  Profile p;
  p.layers = kL;
  p.q_heads = kHq;
  p.kv_heads = kHkv;
  p.head_dim = kD;
  p.fingerprint = "0123456789abcdef";
  p.similarity = Uniform(random, kL * kHkv, -1, 1);
  p.similarity_q = Uniform(random, kL * kHq, -1, 1);
  p.importance = Uniform(random, kL * kHq, 0, 1);
  p.tau_grid = {-1, 0.25f, 0.5f, 0.9f, 0.999f};
  p.kept = Uniform(random, kL * kHkv * kG, 0, 1);
  p.hits = Uniform(random, kL * kHkv * kG, 0, 1);
  p.kept_predicted = Uniform(random, kL * kHkv * kG, 0, 1);
  p.hits_predicted = Uniform(random, kL * kHkv * kG, 0, 1);
  p.curve_budget = 0.1;
  p.curve_context = 12345;
  p.hata[13] = Uniform(random, kL * kHkv * kD * 13, -2, 2);
  p.hata[4] = Uniform(random, kL * kHkv * kD * 4, -2, 2);
  p.loki = Uniform(random, kL * kHkv * kD * kD, -1, 1);
  p.skew = Uniform(random, kL * kHkv * kD * kD, -1, 1);
  p.layer_seconds = 1.25e-4;
  p.link_bytes_per_second = 5.5e10;
  p.corpus = "caf\xc3\xa9 \"quoted\"\n2 files";
  p.created = "2026-11-21";
  return p;
}

void ExpectHalf(const std::vector<float>& read, const std::vector<float>& written) {
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_NEAR(read[i], written[i], std::abs(written[i]) * 0x1p-11 + 0x1p-25);
  }
}

TEST(ProfileTest, ReadsWhatItWrote) {
  auto random = testing::TestRandom(1);
  const TemporaryDirectory directory;
  const Profile p = RandomProfile(random);
  const auto path = directory.path() / "p.safetensors";
  p.Save(path);
  const Profile q = Profile::Load(path);
  EXPECT_EQ(q.layers, p.layers);
  EXPECT_EQ(q.q_heads, p.q_heads);
  EXPECT_EQ(q.kv_heads, p.kv_heads);
  EXPECT_EQ(q.head_dim, p.head_dim);
  EXPECT_EQ(q.fingerprint, p.fingerprint);
  EXPECT_EQ(q.similarity, p.similarity);
  EXPECT_EQ(q.similarity_q, p.similarity_q);
  EXPECT_EQ(q.importance, p.importance);
  EXPECT_EQ(q.tau_grid, p.tau_grid);
  EXPECT_EQ(q.kept, p.kept);
  EXPECT_EQ(q.hits, p.hits);
  EXPECT_EQ(q.kept_predicted, p.kept_predicted);
  EXPECT_EQ(q.hits_predicted, p.hits_predicted);
  EXPECT_EQ(q.curve_budget, p.curve_budget);
  EXPECT_EQ(q.curve_context, p.curve_context);
  EXPECT_EQ(q.layer_seconds, p.layer_seconds);
  EXPECT_EQ(q.link_bytes_per_second, p.link_bytes_per_second);
  EXPECT_EQ(q.corpus, p.corpus);
  EXPECT_EQ(q.created, p.created);
  ExpectHalf(q.loki, p.loki);
  ExpectHalf(q.skew, p.skew);
  ASSERT_EQ(q.hata.size(), 2u);
  ExpectHalf(q.hata.at(13), p.hata.at(13));
  ExpectHalf(q.hata.at(4), p.hata.at(4));

  // Arrays that were not measured stay empty; equal profiles give equal bytes.
  Profile small;
  small.layers = kL;
  small.q_heads = kHq;
  small.kv_heads = kHkv;
  small.head_dim = kD;
  small.Save(path);
  const std::string bytes = io::ReadTextFile(path);
  EXPECT_TRUE(Profile::Load(path).similarity.empty());
  EXPECT_TRUE(Profile::Load(path).hata.empty());
  Profile::Load(path).Save(path);
  EXPECT_EQ(io::ReadTextFile(path), bytes);
}

TEST(ProfileTest, KnowsItsModel) {
  auto random = testing::TestRandom(2);
  const Profile p = RandomProfile(random);
  p.CheckModel(kLayout, "0123456789abcdef", "p");
  EXPECT_ERROR(p.CheckModel(kLayout, "0123456789abcdee", "p"), FileError, "p: ", "fingerprint");
  Layout other = kLayout;
  other.layers = 4;
  EXPECT_ERROR(p.CheckModel(other, "0123456789abcdef", "p"), FileError, "layers = 3", "has 4");
}

TEST(ProfileTest, FitsTheLowestThresholdAboveWhichEverythingKeeps) {
  Profile p;
  p.layers = 1;
  p.q_heads = p.kv_heads = 3;
  p.head_dim = 1;
  p.tau_grid = {-1, 0, 0.5f, 0.9f};
  p.kept = {0.9f,  0.9f, 0.95f, 1,      // monotone
            0.99f, 0.8f, 0.95f, 1,      // keeps again at a lower threshold: by chance
            0.1f,  0.1f, 0.1f,  0.1f};  // never
  p.kept_predicted = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_EQ(p.FittedThreshold(0, 0, 0.95, false), 0.5f);
  EXPECT_EQ(p.FittedThreshold(0, 0, 0.9, false), -1);
  EXPECT_EQ(p.FittedThreshold(0, 0, 0.96, false), 0.9f);
  EXPECT_EQ(p.FittedThreshold(0, 1, 0.95, false), 0.5f);
  EXPECT_EQ(p.FittedThreshold(0, 1, 0.9, false), 0.5f);
  EXPECT_EQ(p.FittedThreshold(0, 2, 0.95, false), 1);
  EXPECT_EQ(p.FittedThreshold(0, 0, 1, true), -1);
  EXPECT_EQ(p.FittedThreshold(0, 1, 0.5, true), 1);
  EXPECT_EQ(p.FittedThreshold(0, 2, 0.5, true), 0.9f);
}

std::string MetadataText(const std::string& change, const std::string& to) {
  std::string text =
      R"({"version":1,"layers":3,"q_heads":6,"kv_heads":2,"head_dim":7,"fingerprint":"x"})";
  const size_t at = text.find(change);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, change.size(), to);
}

TEST(ProfileTest, RefusesWhatIsNoProfile) {
  const auto parse = [](
                         const std::string& text,
                         const std::function<void(io::SafetensorsWriter&)>& fill =
                             [](io::SafetensorsWriter&) {}) {
    io::SafetensorsWriter writer;
    writer.SetMetadata("format", "litecache-profile");
    writer.SetMetadata("profile", text);
    fill(writer);
    const std::string bytes = writer.Bytes();
    return Profile::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "f");
  };
  const std::string good = MetadataText("1", "1");
  const auto add = [&](const char* name, const std::vector<int64_t>& shape,
                       const std::vector<float>& values) {
    return parse(good, [&](io::SafetensorsWriter& w) { w.Add(name, DType::kF32, shape, values); });
  };
  parse(good);
  EXPECT_ERROR(parse("{"), FileError, "f (profile)", "not valid JSON");
  EXPECT_ERROR(parse("[]"), FileError, "f (profile)");
  EXPECT_ERROR(parse(MetadataText(":1,", ":2,")), FileError, "'version'", "litecache profile");
  EXPECT_ERROR(parse(MetadataText("3", "0")), FileError, "'layers'");
  EXPECT_ERROR(parse(MetadataText("3", "1e30")), FileError, "'layers'");
  EXPECT_ERROR(parse(MetadataText("6", "7")), FileError, "'kv_heads'", "divide");
  EXPECT_ERROR(parse(MetadataText("\"head_dim\":7,", "")), FileError, "'head_dim'", "missing");
  EXPECT_ERROR(add("similarity", {3, 3}, std::vector<float>(9)), FileError, "'similarity'", "3, 2");
  EXPECT_ERROR(add("similarity", {3, 2}, {0, 0, 0, 0, 0, 2}), FileError, "'similarity'", "2");
  EXPECT_ERROR(add("importance", {3, 6}, std::vector<float>(18, -0.5f)), FileError, "'importance'");
  EXPECT_ERROR(add("tau_grid", {2}, {0.5f, 0.5f}), FileError, "'tau_grid'", "ascending");
  EXPECT_ERROR(add("tau_grid", {1, 1}, {0.5f}), FileError, "'tau_grid'");
  EXPECT_ERROR(add("kept", {3, 2, 1}, std::vector<float>(6)), FileError, "'kept'");
  EXPECT_ERROR(add("hata.x", {1}, {0}), FileError, "'hata.x'");
  EXPECT_ERROR(add("hata.0", {1}, {0}), FileError, "'hata.0'");
  EXPECT_ERROR(add("hata.2", {3, 2, 7, 3}, std::vector<float>(126)), FileError, "'hata.2'");

  io::SafetensorsWriter plain;
  plain.Add("a", DType::kF32, {1}, std::vector<float>{1});
  const std::string bytes = plain.Bytes();
  EXPECT_ERROR(
      Profile::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "f"),
      FileError, "f: not a profile");
  EXPECT_ERROR(Profile::Load("/nonexistent/p.safetensors"), FileError, "/nonexistent");
}

TEST(ProfileTest, SurvivesDamage) {
  auto random = testing::TestRandom(3);
  const TemporaryDirectory directory;
  const auto path = directory.path() / "p.safetensors";
  RandomProfile(random).Save(path);
  const std::string good = io::ReadTextFile(path);
  const size_t header = 8 + static_cast<unsigned char>(good[0]) +
                        256 * static_cast<size_t>(static_cast<unsigned char>(good[1]));
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= random() % 3; ++i) {
      bytes[random() % (round % 2 == 0 ? header : bytes.size())] = static_cast<char>(random());
    }
    if (round % 5 == 0) bytes.resize(random() % bytes.size());
    try {
      const Profile p =
          Profile::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "f");
      for (const float value : p.kept) EXPECT_TRUE(value >= 0 && value < 1.01f);
    } catch (const FileError&) {
    }
  }
}

TEST(ImportanceTableTest, ReadsColumnsOfBothKinds) {
  const TemporaryDirectory directory;
  const auto kv =
      directory.Write("kv.tsv", "-9.58e-05\t1.0e+00\n5.5859375e-01\t1.25\r\n\n0\t0.125");
  const std::vector<float> expected = {0, 0, 0, 1, 1, 1, 0.55859375f, 0.55859375f, 0.55859375f,
                                       1, 1, 1, 0, 0, 0, 0.125f,      0.125f,      0.125f};
  EXPECT_EQ(ReadImportanceTable(kv, kLayout), expected);
  const auto q = directory.Write("q.tsv", "0 .1 .2 .3 .4 .5\n1 1 1 1 1 1\n.5 .5 .5 .5 .5 7\n");
  const std::vector<float> table = ReadImportanceTable(q, kLayout);
  ASSERT_EQ(table.size(), 18u);
  EXPECT_EQ(table[5], 0.5f);
  EXPECT_EQ(table[17], 1);
}

TEST(ImportanceTableTest, RefusesOtherTables) {
  const TemporaryDirectory directory;
  const auto read = [&](const std::string& text) {
    return ReadImportanceTable(directory.Write("t.tsv", text), kLayout);
  };
  EXPECT_ERROR(read("1 1\n1 x\n1 1\n"), FileError, "t.tsv: line 2, column 2", "'x'");
  EXPECT_ERROR(read("1 1\n1 nan\n1 1\n"), FileError, "line 2, column 2");
  EXPECT_ERROR(read("1 1\n1 1e999\n1 1\n"), FileError, "line 2, column 2");
  EXPECT_ERROR(read("1 1\n1 1 1\n1 1\n"), FileError, "line 2 has 3 columns");
  EXPECT_ERROR(read("1 1\n1 1 1 1 1 1\n1 1\n"), FileError, "line 2 has 6 columns");
  EXPECT_ERROR(read("1 1\n1 1\n"), FileError, "2 rows", "3 layers");
  EXPECT_ERROR(read("1 1\n1 1\n1 1\n1 1\n"), FileError, "line 4", "3 layers");
  EXPECT_ERROR(read(""), FileError, "0 rows");
}

TEST(ProfileOfTest, APartHasTheValuesOfItsHeads) {
  std::mt19937_64 random = ::litecache::testing::TestRandom(3);
  const Profile whole = RandomProfile(random);
  // The second half of the model: KV head 1 with query heads 3 to 5.
  const Profile part = ProfileOf(whole, {.first_q = 3, .q_heads = 3, .first_kv = 1, .kv_heads = 1});
  EXPECT_EQ(part.q_heads, 3);
  EXPECT_EQ(part.kv_heads, 1);
  const auto expect = [](const std::vector<float>& values, const std::vector<float>& all,
                         size_t heads, size_t first, size_t count) {
    const size_t size = all.size() / (kL * heads);
    ASSERT_EQ(values.size(), kL * count * size);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t layer = i / (count * size), in_layer = i % (count * size);
      EXPECT_EQ(values[i], all[(layer * heads + first) * size + in_layer]) << i;
    }
  };
  expect(part.similarity, whole.similarity, kHkv, 1, 1);
  expect(part.kept, whole.kept, kHkv, 1, 1);
  expect(part.hits, whole.hits, kHkv, 1, 1);
  expect(part.kept_predicted, whole.kept_predicted, kHkv, 1, 1);
  expect(part.hits_predicted, whole.hits_predicted, kHkv, 1, 1);
  expect(part.loki, whole.loki, kHkv, 1, 1);
  expect(part.skew, whole.skew, kHkv, 1, 1);
  expect(part.hata.at(13), whole.hata.at(13), kHkv, 1, 1);
  expect(part.similarity_q, whole.similarity_q, kHq, 3, 3);
  expect(part.importance, whole.importance, kHq, 3, 3);
  EXPECT_EQ(part.tau_grid, whole.tau_grid);
}

}  // namespace
}  // namespace litecache::kv
