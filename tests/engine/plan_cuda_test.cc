// Compares the memory plan for a GPU with the memory that has been allocated there.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/cuda/allocated.h"
#include "device/cuda/cuda_devices.h"
#include "engine/plan_settings.h"
#include "kv/pages/page_pool.h"
#include "litecache/engine.h"
#include "model/config.h"
#include "test_seed.h"

namespace litecache::engine {
namespace {

class PlanGpuTest : public ::testing::TestWithParam<PlanSetting> {};

// The largest possible steps: all but one sequence of the batch decode together with a whole chunk
// of a prompt, and with as many score rows as get logits at once.
TEST_P(PlanGpuTest, SaysWhatIsTaken) {
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.reason;
  auto random = testing::TestRandom(91);
  EngineOptions options;
  options.device = "cuda";
  options.max_batch = 8;
  options.max_context = 1500;
  options.prefill_chunk = 1000 + static_cast<int64_t>(random() % 400);
  options.memory = uint64_t{2} << 30;
  options.kv.device_memory = uint64_t{3} << 30;
  options.kv.resident_heads = GetParam().resident_heads;
  options.kv.policy = GetParam().policy;
  options.kv.transfer = GetParam().transfer;
  const uint64_t before = AllocatedGpuMemory();
  // Some 100M parameters: buffers and weights are far larger than a page.
  const auto engine = Engine::Random(GetParam().shape, 5, options);
  const MemoryPlan plan = engine->memory_plan();
  if (GetParam().resident_heads == "auto") {
    EXPECT_EQ(plan.resident_heads, plan.kv_heads);
  }
  const auto vocab = static_cast<uint64_t>(engine->config().vocab);
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
    return ids;
  };

  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int64_t i = 0; i + 1 < options.max_batch; ++i) {
    handles.push_back(engine->Submit({.prompt = tokens(100 + static_cast<int64_t>(random() % 900)),
                                      .max_tokens = 300,
                                      .ignore_eos = true}));
  }
  for (const auto& handle : handles) ASSERT_TRUE(handle->Next());  // all decode
  const auto longest = engine->Submit({.prompt = tokens(1450), .max_tokens = 1});
  ASSERT_TRUE(longest->Next());
  engine->Score({tokens(500), {}, -1}, {});
  for (const auto& handle : handles) handle->Cancel();
  handles.clear();

  const kv::Stats kv = engine->Stats().kv;
  const uint64_t taken = AllocatedGpuMemory() - before;
  // Pages are allocated in slabs, and ahead of time; page tables and a step's description are not
  // in the plan.
  const uint64_t small = uint64_t{4} << 20;
  SCOPED_TRACE(::testing::Message()
               << "taken " << FormatBytes(taken) << ", weights " << FormatBytes(plan.weights)
               << ", buffers " << FormatBytes(plan.buffers) << ", KV at its peak "
               << FormatBytes(kv.peak.device) << ", provided " << FormatBytes(kv.provided.device));
  EXPECT_LE(taken, plan.weights + plan.buffers + kv.provided.device + small);
  if (GetParam().exact) {
    EXPECT_GE(taken + plan.buffers / 10, plan.weights + plan.buffers + kv.peak.device);
  }
  EXPECT_LE(kv.peak.device, kv.provided.device);
  EXPECT_LE(kv.provided.device, plan.kv.device);
}

INSTANTIATE_TEST_SUITE_P(Policies, PlanGpuTest, ::testing::ValuesIn(PlanSettings()),
                         [](const auto& info) {
                           std::string name = info.param.policy;
                           if (info.param.transfer == "copy") name += "Copy";
                           if (info.param.transfer == "cpu-push") name += "CpuPush";
                           if (info.param.resident_heads == "auto") name += "OnDevice";
                           return name;
                         });

}  // namespace
}  // namespace litecache::engine
