// The public KV cache on a GPU, between other work on the stream of a program that uses it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_devices.h"
#include "litecache/kv_cache.h"
#include "test_seed.h"

namespace litecache {
namespace {

constexpr KvShape kShape{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .f32_rows = true};
constexpr int64_t kQCols = kShape.q_heads * kShape.head_dim;
constexpr int64_t kKvCols = kShape.kv_heads * kShape.head_dim;
constexpr int64_t kMostRows = 300;

KvOptions Options(const std::string& policy) {
  KvOptions options;
  options.policy = policy;
  options.budget = KvBudget::Parse("100%");
  options.device_memory = 256 << 20;
  options.host_memory = 256 << 20;
  return options;
}

// Arrays on the GPU that are filled on the caller's stream just before a call, and read behind it:
// the results are right only if the cache's work comes between.
class GpuArrays {
 public:
  GpuArrays() {
    LC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (float** array : {&q_, &out_})
      LC_CUDA(cudaMalloc(reinterpret_cast<void**>(array), kMostRows * kQCols * 4));
    for (float** array : {&k_, &v_})
      LC_CUDA(cudaMalloc(reinterpret_cast<void**>(array), kMostRows * kKvCols * 4));
  }
  ~GpuArrays() {
    for (float* array : {q_, k_, v_, out_}) cudaFree(array);
    cudaStreamDestroy(stream);
  }

  std::vector<float> Attend(KvCache& cache, int64_t layer, const std::vector<float>& q,
                            const std::vector<float>& k, const std::vector<float>& v) {
    Copy(q_, q.data(), q.size());
    Copy(k_, k.data(), k.size());
    Copy(v_, v.data(), v.size());
    cache.Attend(layer, q_, k_, v_, 0.125f, out_);
    std::vector<float> out(q.size());
    Copy(out.data(), out_, out.size());
    LC_CUDA(cudaStreamSynchronize(stream));
    return out;
  }

  cudaStream_t stream = nullptr;

 private:
  void Copy(float* to, const float* from, size_t count) {
    LC_CUDA(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDefault, stream));
  }
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *out_ = nullptr;
};

class KvCacheOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  }
};

TEST_P(KvCacheOnGpu, AgreesWithTheCpu) {
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  GpuArrays arrays;
  const auto cpu = KvCache::Create(kShape, Options("full"), 1);
  const auto gpu = KvCache::CreateOnGpu(kShape, Options(GetParam()), {.stream = arrays.stream});
  const int64_t id = cpu->CreateSequence();
  ASSERT_EQ(gpu->CreateSequence(), id);
  for (int step = 0; step < 20; ++step) {
    const KvPart part = step == 0 ? KvPart{.sequence = id, .rows = kMostRows}
                                  : KvPart{.sequence = id, .decode = true};
    const auto draw = [&](int64_t columns) {
      std::vector<float> values(static_cast<size_t>(part.rows * columns));
      for (float& x : values) x = normal(random);
      return values;
    };
    for (KvCache* cache : {cpu.get(), gpu.get()}) cache->BeginStep({&part, 1});
    for (int64_t layer = 0; layer < kShape.layers; ++layer) {
      const auto q = draw(kQCols), k = draw(kKvCols), v = draw(kKvCols);
      std::vector<float> expected(q.size());
      cpu->Attend(layer, q.data(), k.data(), v.data(), 0.125f, expected.data());
      const auto out = arrays.Attend(*gpu, layer, q, k, v);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-3) << step;
    }
    for (KvCache* cache : {cpu.get(), gpu.get()}) cache->EndStep();
  }
  EXPECT_EQ(gpu->Length(id), kMostRows + 19);
  gpu->ReleaseSequence(id);
  EXPECT_EQ(gpu->GetStats().used.device, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, KvCacheOnGpu, ::testing::Values("full", "litecache"));

TEST(KvCacheOnGpuErrors, RefusesKvpr) {
  if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  EXPECT_THROW(KvCache::CreateOnGpu(kShape, Options("kvpr")), Unsupported);
}

}  // namespace
}  // namespace litecache
