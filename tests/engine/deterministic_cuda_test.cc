// EngineOptions::deterministic on a GPU: as deterministic_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"
#include "engine/deterministic_checks.h"

namespace litecache::engine {
namespace {

class DeterministicGpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const CudaDevices found = FindCudaDevices();
    if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.reason;
  }
  EngineOptions Options() const {
    EngineOptions options = Deterministic(GetParam());
    options.device = "cuda";
    options.kv.device_memory = uint64_t{2} << 30;
    return options;
  }
};

// Steps are issued, recorded and replayed, in batches of up to 16 samples with policy full.
TEST_P(DeterministicGpuTest, RequestsBesideItDoNotChangeAnAnswer) {
  const auto alone = Engine::Load(DemoModel(), Options());
  const std::vector<Request> requests = DeterministicRequests(alone->tokenizer());
  const Answers want = Answers::OneByOne(*alone, requests);
  const auto busy = Engine::Load(DemoModel(), Options());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Answers::Together(*busy, requests), want);
  EngineOptions as_usual = Options();
  as_usual.deterministic = false;
  const auto usual = Engine::Load(DemoModel(), as_usual);
  const Answers usual_alone = Answers::OneByOne(*usual, requests);
  RecordProperty("equal_without",
                 static_cast<int>(Answers::Together(*usual, requests).Equal(usual_alone)));
}

TEST_P(DeterministicGpuTest, KeptPrefixesDoNotChangeAnAnswer) {
  const auto alone = Engine::Load(DemoModel(), Options());
  const std::vector<Request> requests = DeterministicRequests(alone->tokenizer());
  const Answers want = Answers::OneByOne(*alone, requests);
  EngineOptions options = Options();
  options.prefix_cache = true;
  const auto keeps = Engine::Load(DemoModel(), options);
  EXPECT_EQ(Answers::Together(*keeps, requests), want);
  EXPECT_EQ(Answers::OneByOne(*keeps, requests), want);
  EXPECT_GT(keeps->Stats().prefix.tokens, 3000);
}

TEST_P(DeterministicGpuTest, ModelsInF32AreRefused) {
  EngineOptions options = Options();
  options.dtype = "f32";
  EXPECT_THROW(Engine::Load(DemoModel(), options), Unsupported);
}

INSTANTIATE_TEST_SUITE_P(Policies, DeterministicGpuTest, ::testing::Values("full", "litecache"));

}  // namespace
}  // namespace litecache::engine
