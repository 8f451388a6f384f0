// The public KV cache on a GPU, between other work on the stream of a program that uses it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/dtype.h"
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

  // T: float, bf16 or f16.
  template <typename T>
  std::vector<T> Attend(KvCache& cache, int64_t layer, KvElement element, const std::vector<T>& q,
                        const std::vector<T>& k, const std::vector<T>& v) {
    Copy(q_, q.data(), q.size() * sizeof(T));
    Copy(k_, k.data(), k.size() * sizeof(T));
    Copy(v_, v.data(), v.size() * sizeof(T));
    cache.Attend(layer, element, q_, k_, v_, 0.125f, out_);
    std::vector<T> out(q.size());
    Copy(out.data(), out_, out.size() * sizeof(T));
    LC_CUDA(cudaStreamSynchronize(stream));
    return out;
  }

  cudaStream_t stream = nullptr;

 private:
  void Copy(void* to, const void* from, size_t bytes) {
    LC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  }
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *out_ = nullptr;
};

class KvCacheOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  }
};

// A step of one part in both caches; `cpu` is the reference. attend(layer, q, k, v) calls `gpu`.
template <typename AttendOnGpu>
void Compare(std::mt19937_64& random, const KvShape& shape, KvCache& cpu, KvCache& gpu,
             const KvPart& part, const AttendOnGpu& attend) {
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t columns) {
    std::vector<float> values(static_cast<size_t>(part.rows * columns));
    for (float& x : values) x = normal(random);
    return values;
  };
  for (KvCache* cache : {&cpu, &gpu}) cache->BeginStep({&part, 1});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto q = draw(kQCols), k = draw(kKvCols), v = draw(kKvCols);
    std::vector<float> expected(q.size());
    cpu.Attend(layer, q.data(), k.data(), v.data(), 0.125f, expected.data());
    const std::vector<float> out = attend(layer, q, k, v);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-3) << layer;
  }
  for (KvCache* cache : {&cpu, &gpu}) cache->EndStep();
}

// With prefetch = auto some of six layers are planned to be predicted, which a caller need not do.
TEST_P(KvCacheOnGpu, AgreesWithTheCpu) {
  std::mt19937_64 random = testing::TestRandom();
  for (const int64_t layers : {2, 6}) {
    KvShape shape = kShape;
    shape.layers = layers;
    GpuArrays arrays;
    const auto cpu = KvCache::Create(shape, Options("full"), 1);
    const auto gpu = KvCache::CreateOnGpu(shape, Options(GetParam()), {.stream = arrays.stream});
    const int64_t id = cpu->CreateSequence();
    ASSERT_EQ(gpu->CreateSequence(), id);
    const auto attend = [&](int64_t layer, const auto& q, const auto& k, const auto& v) {
      return arrays.Attend(*gpu, layer, KvElement::kF32, q, k, v);
    };
    Compare(random, shape, *cpu, *gpu, {.sequence = id, .rows = kMostRows}, attend);
    for (int step = 0; step < 100 && !HasFatalFailure(); ++step) {
      Compare(random, shape, *cpu, *gpu, {.sequence = id, .decode = true}, attend);
    }
    EXPECT_EQ(gpu->Length(id), kMostRows + 100);
    gpu->ReleaseSequence(id);
    EXPECT_EQ(gpu->GetStats().used.device, 0u);
  }
}

// The caller may go from stream to stream, also within a step.
TEST_P(KvCacheOnGpu, FollowsItsCallerToOtherStreams) {
  std::mt19937_64 random = testing::TestRandom();
  GpuArrays arrays[2];
  const auto cpu = KvCache::Create(kShape, Options("full"), 1);
  const auto gpu = KvCache::CreateOnGpu(kShape, Options(GetParam()));
  const int64_t id = cpu->CreateSequence();
  ASSERT_EQ(gpu->CreateSequence(), id);
  int turn = 0;
  const auto attend = [&](int64_t layer, const auto& q, const auto& k, const auto& v) {
    turn = (turn + 1) % 3;
    GpuArrays& with = arrays[turn / 2];  // twice the one, then the other
    gpu->UseStream(with.stream);
    return with.Attend(*gpu, layer, KvElement::kF32, q, k, v);
  };
  Compare(random, kShape, *cpu, *gpu, {.sequence = id, .rows = 250}, attend);
  for (int step = 0; step < 6 && !HasFatalFailure(); ++step) {
    Compare(random, kShape, *cpu, *gpu, {.sequence = id, .decode = true}, attend);
  }
}

// Arrays of 16 bits give what f32 arrays with the same values give, rounded.
template <typename T>
void ConvertArrays(KvElement element, const char* policy) {
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  GpuArrays arrays;
  const KvGpu gpu{.stream = arrays.stream};
  const auto narrow = KvCache::CreateOnGpu(kShape, Options(policy), gpu);
  const auto wide = KvCache::CreateOnGpu(kShape, Options(policy), gpu);
  const int64_t id = narrow->CreateSequence();
  ASSERT_EQ(wide->CreateSequence(), id);
  for (const int64_t rows : {7, 1, 300, 1}) {  // grows
    const KvPart part{.sequence = id, .rows = rows, .decode = rows == 1};
    for (KvCache* cache : {narrow.get(), wide.get()}) cache->BeginStep({&part, 1});
    for (int64_t layer = 0; layer < kShape.layers; ++layer) {
      std::vector<T> given[3];
      std::vector<float> same[3];
      for (int i = 0; i < 3; ++i) {
        for (int64_t c = 0; c < rows * (i == 0 ? kQCols : kKvCols); ++c) {
          given[i].push_back(T(normal(random)));
          same[i].push_back(static_cast<float>(given[i].back()));
        }
      }
      const auto out = arrays.Attend(*narrow, layer, element, given[0], given[1], given[2]);
      const auto want = arrays.Attend(*wide, layer, KvElement::kF32, same[0], same[1], same[2]);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(static_cast<float>(out[i]), want[i], std::ldexp(std::abs(want[i]), -8) + 1e-6);
      }
    }
    for (KvCache* cache : {narrow.get(), wide.get()}) cache->EndStep();
  }
}

TEST_P(KvCacheOnGpu, ConvertsArraysOf16Bits) {
  ConvertArrays<bf16>(KvElement::kBF16, GetParam());
  ConvertArrays<f16>(KvElement::kF16, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Policies, KvCacheOnGpu, ::testing::Values("full", "litecache"));

TEST(KvCacheOnGpuErrors, RefusesKvpr) {
  if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  EXPECT_THROW(KvCache::CreateOnGpu(kShape, Options("kvpr")), Unsupported);
}

TEST(KvCacheOnGpuErrors, ArraysBeginAtMultiplesOf16Bytes) {
  if (FindCudaDevices().devices.empty()) GTEST_SKIP() << FindCudaDevices().reason;
  const auto cache = KvCache::CreateOnGpu(kShape, Options("full"));
  const KvPart part{.sequence = cache->CreateSequence()};
  cache->BeginStep({&part, 1});
  float* array = nullptr;
  LC_CUDA(cudaMalloc(reinterpret_cast<void**>(&array), 4 * kQCols * sizeof(float)));
  EXPECT_THROW(cache->Attend(0, array, array, array + 1, 1, array), InvalidArgument);
  cache->Attend(0, array, array, array, 1, array + kQCols);
  LC_CUDA(cudaDeviceSynchronize());
  cudaFree(array);
}

}  // namespace
}  // namespace litecache
