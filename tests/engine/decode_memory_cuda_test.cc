// Decode steps request no memory from the driver: everything they need has been allocated,
// including the pages by which their sequences grow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/count_allocations.h"
#include "device/cuda/cuda_devices.h"
#include "litecache/engine.h"
#include "model/config.h"
#include "test_seed.h"

namespace litecache::engine {
namespace {

class DecodeMemoryTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DecodeMemoryTest, IsThereBefore) {
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.reason;
  auto random = testing::TestRandom(92);
  EngineOptions options;
  options.device = "cuda";
  options.max_batch = 4;
  options.max_context = 1024;
  options.memory = uint64_t{2} << 30;
  options.kv.device_memory = uint64_t{3} << 30;
  options.kv.resident_heads = "none";  // these few rows would stay on the GPU
  options.kv.policy = GetParam();
  const auto engine = Engine::Random("opt-125m", 5, options);
  const auto vocab = static_cast<uint64_t>(engine->config().vocab);

  // The same buffers serve all these contexts, because buffers double with the context.
  constexpr int kPrompt = 600, kFirst = 20, kTokens = 320;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < options.max_batch; ++i) {
    std::vector<int32_t> prompt(kPrompt + 5 * static_cast<size_t>(i));
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % vocab);
    handles.push_back(
        engine->Submit({.prompt = prompt, .max_tokens = kTokens, .ignore_eos = true}));
  }
  // Reads until every request has `tokens`; they decode together, each one token per step.
  std::vector<int64_t> counts(handles.size());
  const auto read = [&](int64_t tokens) {
    for (size_t i = 0; i < handles.size(); ++i) {
      while (counts[i] < tokens) {
        const auto chunk = handles[i]->Next();
        if (!chunk) return;
        counts[i] += std::ssize(chunk->tokens);
      }
    }
  };
  read(kFirst);
  ASSERT_GE(*std::min_element(counts.begin(), counts.end()), kFirst);
  const int64_t before = testing::Allocations();
  EXPECT_GT(before, 0);  // shows that allocations are counted
  read(kTokens);
  ASSERT_EQ(*std::min_element(counts.begin(), counts.end()), kTokens);
  EXPECT_EQ(testing::Allocations() - before, 0);
}

std::vector<std::string> PolicyNames() { return {KvPolicies().begin(), KvPolicies().end()}; }

INSTANTIATE_TEST_SUITE_P(Policies, DecodeMemoryTest, ::testing::ValuesIn(PolicyNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace litecache::engine
