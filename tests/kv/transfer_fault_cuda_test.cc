// A transfer that fails inside a step of policy litecache: its sequences end with the error, and
// others continue.
#include <gmock/gmock.h>

#include "device/cuda/cuda_devices.h"
#include "device/device_error.h"
#include "kv/litecache/cache_cuda.h"
#include "kv/litecache/harness.h"
#include "kv/transfer/cpu_push_cuda.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

TEST(TransferFault, EndsTheStepsSequencesAlone) {
  if (FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom(61);
  const Layout layout{
      .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "exact";
  options.budget = KvBudget::Parse("20");
  options.recent_tokens = 8;
  options.thresholds = "fixed";
  options.eta = 1;  // every step refreshes
  options.delta_update = false;
  options.prefetch = "off";
  options.transfer = "cpu-push";
  options.transfer_threads = 2;
  Harness harness(layout, options, nullptr, 0.3, random(), kPlenty, "cuda");
  auto& cache = dynamic_cast<CudaLiteCache&>(harness.any_cache());
  auto& push = dynamic_cast<CpuPush&>(cache.transfer());
  push.set_deadline(200 * 1000 * 1000);

  const SequenceId other = harness.Create();
  harness.Step({{other, 150, false}});
  for (int i = 0; i < 3; ++i) harness.Step({{other}});
  for (int fault = 0; fault < 3; ++fault) {
    const SequenceId id = harness.Create();
    harness.Step({{id, 120, false}});
    for (int i = 0; i < 3; ++i) harness.Step({{id}, {other}});
    if (HasFailure()) return;
    push.pusher().Stop();
    try {
      harness.Step({{id}});
      FAIL() << "no rows were pushed, and nobody missed them";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("layer 1"));  // layer 0 is resident
      EXPECT_THAT(error.what(), ::testing::HasSubstr("flag"));
    }
    // Its slots have wrong contents: neither it nor its forks may be used again.
    EXPECT_THROW(harness.Step({{id}}), DeviceError);
    const SequenceId fork = harness.Fork(id);
    EXPECT_THROW(harness.Step({{fork}}), DeviceError);
    harness.Release(fork);
    harness.Release(id);
    harness.Step({{other}});
  }
}

}  // namespace
}  // namespace litecache::kv
