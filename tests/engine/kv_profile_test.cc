#include "engine/kv_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr kv::Layout kLayout{
    .layers = 2, .q_heads = 8, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};

KvOptions LiteCacheOptions(const char* retriever = "auto") {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = retriever;
  return options;
}

std::string Warning(const KvOptions& options, const std::shared_ptr<const kv::Profile>& profile) {
  const auto plan = kv::MakeCachePlan(kLayout, options, profile, DeviceType::kCpu);
  const std::string warning = PlanWarning(*plan, profile.get());
  const auto lines = DescribePlan(*plan, options, profile.get());
  if (warning.empty()) {
    EXPECT_THAT(lines, Not(Contains(HasSubstr("projections"))));
  } else {
    EXPECT_EQ(lines.at(0), warning);
  }
  return warning;
}

TEST(KvProfile, IsFoundBesideTheWeights) {
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(ProfilePath(directory.path()), directory.path() / "litecache-profile.safetensors");
  EXPECT_EQ(ProfilePath(directory.Write("m.Q4_0-00001-of-00002.gguf", "GGUF")),
            directory.path() / "m.Q4_0.litecache-profile.safetensors");
}

TEST(KvProfile, WarningsNameTheCommandThatHelps) {
  EXPECT_THAT(Warning(LiteCacheOptions("hata"), nullptr),
              AllOf(HasSubstr("litecache profile --model DIR`"), HasSubstr("random projections")));
  EXPECT_THAT(Warning(LiteCacheOptions("quest"), nullptr),
              AllOf(HasSubstr("litecache profile --model DIR`"), Not(HasSubstr("projections"))));

  kv::Profile profile;
  profile.similarity.assign(static_cast<size_t>(kLayout.layers * kLayout.kv_heads), 0.5f);
  const auto without = std::make_shared<const kv::Profile>(profile);
  EXPECT_THAT(Warning(LiteCacheOptions("hata"), without),
              AllOf(HasSubstr("no hash weights"), HasSubstr("--only hata")));
  EXPECT_EQ(Warning(LiteCacheOptions("quest"), without), "");
  // Loki's bases cannot be replaced by random ones.
  EXPECT_THROW(Warning(LiteCacheOptions("loki"), without), InvalidArgument);

  profile.hata[128].assign(static_cast<size_t>(4 * 64 * 128), 0.5f);
  const auto with = std::make_shared<const kv::Profile>(profile);
  EXPECT_EQ(Warning(LiteCacheOptions("hata"), with), "");
  KvOptions wider = LiteCacheOptions("hata");
  wider.hata_bits = 256;
  EXPECT_THROW(Warning(wider, with), InvalidArgument);
}

}  // namespace
}  // namespace litecache::engine
