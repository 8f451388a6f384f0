// litecache-cuda-bench: times of CUDA operations against the hardware's limits. One GPU, less than
// a minute; `--filter TEXT` runs those with TEXT in their names.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/median.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_devices.h"
#include "ops/bench_cuda.h"

namespace litecache::ops::cuda {
namespace {

// H200: measured rate of reading device memory, and of a library's dense bf16 products.
constexpr double kBytesASecond = 4.4e12;
constexpr double kFlopsASecond = 790e12;
constexpr int kReplays = 15;
constexpr float kWarmMilliseconds = 30;
constexpr size_t kPattern = size_t{32} << 20;

}  // namespace

void Bench::Run(const std::string& name, double bytes, double flops, int count,
                const std::function<void(Stream&, int)>& run) {
  if (!Wants(name)) return;
  const auto stream = gpu_.CreateStream();
  cudaStream_t handle = AsCuda(*stream).handle();
  run(*stream, 0);  // outside the graph, because the first call prepares data
  AsCuda(*stream).Return();
  stream->Synchronize();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) run(*stream, i);
  AsCuda(*stream).Return();
  LC_CUDA(cudaStreamEndCapture(handle, &graph));
  LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  LC_CUDA(cudaEventCreate(&begin));
  LC_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  // An idle GPU needs time to raise its clocks.
  float warm = 0;
  for (int i = 0; i < kReplays + 1; ++i) {
    LC_CUDA(cudaEventRecord(begin, handle));
    LC_CUDA(cudaGraphLaunch(executable, handle));
    LC_CUDA(cudaEventRecord(end, handle));
    LC_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    LC_CUDA(cudaEventElapsedTime(&ms, begin, end));
    warm += ms;
    if (warm < kWarmMilliseconds) i = 0;
    if (i > 0) times.push_back(double{ms});
  }
  LC_CUDA(cudaEventDestroy(begin));
  LC_CUDA(cudaEventDestroy(end));
  LC_CUDA(cudaGraphExecDestroy(executable));
  LC_CUDA(cudaGraphDestroy(graph));
  const double seconds = Median(std::move(times)) / 1e3 / count;
  const double floor = std::max(bytes / kBytesASecond, flops / kFlopsASecond);
  fmt::print("{:<52} {:>10.1f} us {:>9.1f} MB {:>8.0f} GB/s {:>7.1f} TFLOP/s {:>5.0f}% of floor\n",
             name, seconds * 1e6, bytes / 1e6, bytes / seconds / 1e9, flops / seconds / 1e12,
             100 * floor / seconds);
  std::fflush(stdout);
}

Buffer Bench::Random(size_t bytes) {
  Buffer buffer = gpu_.Allocate(bytes);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> pattern(std::min(bytes, kPattern) / sizeof(bf16));
  // A million different numbers, repeated.
  for (size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = i < (size_t{1} << 20) ? bf16(normal(random)) : pattern[i - (size_t{1} << 20) + 1];
  }
  size_t filled = pattern.size() * sizeof(bf16);
  gpu_.Copy(buffer.data(), pattern.data(), filled);
  while (filled < bytes) {
    const size_t more = std::min(filled, bytes - filled);
    gpu_.Copy(buffer.as<char>() + filled, buffer.data(), more);
    filled += more;
  }
  return buffer;
}

Buffer Bench::Zeros(size_t bytes) {
  Buffer buffer = gpu_.Allocate(bytes);
  gpu_.Zero(buffer.data(), bytes);
  return buffer;
}

namespace {

std::map<std::string, void (*)(Bench&)>& Topics() {
  static std::map<std::string, void (*)(Bench&)> topics;
  return topics;
}

int Main(int argc, char** argv) {
  std::string filter;
  if (argc == 3 && std::strcmp(argv[1], "--filter") == 0) {
    filter = argv[2];
  } else if (argc != 1) {
    fmt::print(stderr, "usage: {} [--filter TEXT]\n", argv[0]);
    return 2;
  }
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) {
    fmt::print(stderr, "no GPU: {}\n", found.reason);
    return 1;
  }
  Bench bench(filter);
  for (const auto& [name, run] : Topics()) run(bench);
  return 0;
}

}  // namespace

BenchTopic::BenchTopic(const char* name, void (*run)(Bench&)) { Topics().emplace(name, run); }

}  // namespace litecache::ops::cuda

int main(int argc, char** argv) {
  try {
    return litecache::ops::cuda::Main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
