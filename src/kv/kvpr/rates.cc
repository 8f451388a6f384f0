#include "kv/kvpr/rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "kv/kvpr/rates_cuda.h"
#include "kv/offload/recompute.h"
#include "ops/common/available_cuda.h"
#include "ops/linear/linear.h"

namespace litecache::kv::kvpr {
namespace {

constexpr int kPasses = 3;
// More than a core's caches hold, so that rows come from memory.
constexpr uint64_t kTransferBytes = 32u << 20;

// Time of the fastest pass, after a warm-up that faults the memory in.
double Seconds(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  double best = HUGE_VAL;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return std::max(best, 1e-9);
}

double LinkRate(Device& device, const offload::Shape& shape) {
  const int64_t tokens =
      std::max<int64_t>(1, static_cast<int64_t>(kTransferBytes / shape.format.row_bytes()));
  const auto bytes = [&](const ops::RowFormat& format) {
    return static_cast<size_t>(tokens) * format.row_bytes();
  };
  const Buffer store = device.Allocate(bytes(shape.store_format));
  const Buffer staging = device.Allocate(bytes(shape.format));
  std::fill_n(store.as<std::byte>(), store.size(), std::byte{0});
  auto* from = store.as<std::byte>();
  auto* to = staging.as<std::byte>();
  const ops::ConvertWork work{
      {&from, tokens, shape.store_format}, {&to, tokens, shape.format}, 0, tokens};
  return static_cast<double>(store.size()) / Seconds([&] { ops::CopyRows(work); });
}

double ProductRate(Device& device, const offload::Shape& shape) {
  const Layout& layout = shape.layout;
  const int64_t width = layout.kv_heads * layout.head_dim;
  const auto stream = device.CreateStream();
  const auto matrix = [&](int64_t rows, int64_t cols, DType dtype, std::vector<Buffer>* memory) {
    memory->push_back(device.Allocate(static_cast<size_t>(rows * cols) * SizeOf(dtype)));
    std::fill_n(memory->back().as<std::byte>(), memory->back().size(), std::byte{0});
    return MatrixView{memory->back().data(), dtype, rows, cols, cols};
  };
  std::vector<Buffer> memory;
  const MatrixView x = matrix(offload::kRecomputeTokens, layout.hidden, DType::kF32, &memory);
  std::vector<ops::LinearPart> parts;
  parts.reserve(2);
  for (int i = 0; i < 2; ++i) {
    parts.push_back({.weight = matrix(width, layout.hidden, layout.dtype, &memory),
                     .bias = nullptr,
                     .y = matrix(offload::kRecomputeTokens, width, DType::kF32, &memory)});
  }
  const double seconds = Seconds([&] {
    ops::Linear(*stream, x, parts);
    stream->Synchronize();
  });
  return 4.0 * static_cast<double>(offload::kRecomputeTokens * layout.hidden * width) / seconds;
}

}  // namespace

Rates MeasureRates(Device& device, const offload::Shape& shape) {
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) return MeasureGpuRates(device, shape);
  }
  return {.link_bytes_per_second = LinkRate(device, shape),
          .flops_per_second = ProductRate(device, shape)};
}

}  // namespace litecache::kv::kvpr
