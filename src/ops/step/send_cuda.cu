#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/step/send_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Copies whole uint4, then the remaining words.
__global__ void __launch_bounds__(kThreads)
    SendKernel(const std::byte* host, std::byte* device, int64_t words) {
  const int64_t wide = words / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < wide) {
    reinterpret_cast<uint4*>(device)[i] = reinterpret_cast<const uint4*>(host)[i];
  } else if (i < wide + words % 4) {
    const int64_t word = 4 * wide + i - wide;
    reinterpret_cast<uint32_t*>(device)[word] = reinterpret_cast<const uint32_t*>(host)[word];
  }
}

}  // namespace

void SendByKernel(Stream& stream, const Mirror& mirror, size_t bytes) {
  LC_CHECK(bytes % 4 == 0, "{} bytes", bytes);
  if (bytes == 0) return;
  const auto words = static_cast<int64_t>(bytes / 4);
  const int64_t threads = words / 4 + words % 4;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  SendKernel<<<blocks, kThreads, 0, AsCuda(stream).handle()>>>(mirror.host(), mirror.device(),
                                                               words);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
