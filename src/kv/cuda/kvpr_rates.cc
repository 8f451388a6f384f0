#include "kv/cuda/kvpr_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "kv/offload/recompute.h"
#include "ops/linear.h"

namespace litecache::kv::kvpr {
namespace {

constexpr int kPasses = 5;
// Milliseconds at a link's rate.
constexpr uint64_t kTransferBytes = 256u << 20;

// Of the fastest pass, after one that chooses algorithms.
double Seconds(Stream& stream, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = HUGE_VAL;
  for (int pass = 0; pass <= kPasses; ++pass) {
    stream.Synchronize();
    const auto start = Clock::now();
    work();
    stream.Synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (pass > 0) best = std::min(best, seconds);
  }
  return std::max(best, 1e-9);
}

// Pages one after another, as the cache copies them.
double LinkRate(CudaDevice& device, Stream& stream, uint64_t page_bytes) {
  PinnedHost host(device);
  const uint64_t pages = std::max<uint64_t>(1, kTransferBytes / page_bytes);
  const Buffer from = host.Allocate(pages * page_bytes), to = device.Allocate(from.size());
  CudaCopyBatch copies;
  const double seconds = Seconds(stream, [&] {
    for (uint64_t i = 0; i < pages; ++i) {
      copies.Add(to.as<std::byte>() + i * page_bytes, from.as<std::byte>() + i * page_bytes,
                 page_bytes);
    }
    copies.Send(stream);
  });
  return static_cast<double>(from.size()) / seconds;
}

double ProductRate(CudaDevice& device, Stream& stream, const Layout& layout) {
  const int64_t width = layout.kv_heads * layout.head_dim;
  constexpr int64_t kRows = offload::kGpuRecomputeTokens;
  // Random signs and fractions of numbers around 1: zeros would draw less power than a model's
  // values, and the GPU would run faster.
  std::mt19937 random(1);
  std::vector<uint32_t> values(size_t{1} << 18);
  for (uint32_t& x : values) x = (static_cast<uint32_t>(random()) & 0x807f807fu) | 0x3f803f80u;
  std::vector<Buffer> memory;
  const auto matrix = [&](int64_t rows, int64_t cols, DType dtype) {
    const size_t bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
    memory.push_back(device.Allocate(bytes));
    auto* data = memory.back().as<std::byte>();
    size_t done = std::min(bytes, values.size() * sizeof(uint32_t));
    device.Upload(data, values.data(), done);
    for (; done < bytes; done += std::min(done, bytes - done)) {
      device.CopyWithin(data + done, data, std::min(done, bytes - done));
    }
    return MatrixView::Of(data, dtype, rows, cols);
  };
  const MatrixView x = matrix(kRows, layout.hidden, layout.dtype);
  std::vector<ops::LinearPart> parts;
  for (int i = 0; i < 2; ++i) {
    parts.push_back({.weight = matrix(width, layout.hidden, layout.dtype),
                     .bias = nullptr,
                     .y = matrix(kRows, width, DType::kF32)});
  }
  const double seconds = Seconds(stream, [&] { ops::Linear(stream, x, parts); });
  return 4.0 * static_cast<double>(kRows * layout.hidden * width) / seconds;
}

}  // namespace

Rates MeasureGpuRates(Device& device, const offload::Shape& shape) {
  LC_CHECK(device.type() == DeviceType::kCuda && shape.on_gpu);
  auto& gpu = static_cast<CudaDevice&>(device);
  const auto stream = gpu.CreateStream();
  return {.link_bytes_per_second = LinkRate(gpu, *stream, shape.page_bytes),
          .flops_per_second = ProductRate(gpu, *stream, shape.layout)};
}

}  // namespace litecache::kv::kvpr
