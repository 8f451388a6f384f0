#include "bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/matrix_view.h"
#include "ops/linear/linear.h"

namespace litecache::bench {
namespace {

// Larger than any last-level cache that a few cores share; faulting it in takes 0.1 s.
constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr int kPasses = 8;
// Products of these sizes take milliseconds and are large enough for all levels of blocking.
constexpr int64_t kProductSize = 1536;
constexpr int64_t kGpuProductSize = 8192;
// Number of distinct values in a matrix; no two rows of a GPU's matrix begin with the same value.
constexpr size_t kDrawn = 1000003;

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The sum keeps the compiler from removing the reads; eight chains keep loads in flight.
uint64_t Sum(const uint64_t* data, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += data[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double MeasureBandwidth(ThreadPool& pool) {
  std::vector<uint64_t> buffer(kBufferBytes / sizeof(uint64_t), 1);
  const size_t share = buffer.size() / static_cast<size_t>(pool.size());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.Run([&](int worker) {
      sums[static_cast<size_t>(worker)] =
          Sum(buffer.data() + share * static_cast<size_t>(worker), share);
    });
    const double bytes = static_cast<double>(share * sizeof(uint64_t)) * pool.size();
    best = std::max(best, bytes / Since(start));
  }
  for (const uint64_t sum : sums) LC_CHECK(sum == share / 8 * 8);
  return best;
}

double MeasureMatrixProduct(Device& device, Stream& stream, DType dtype) {
  const bool gpu = device.type() == DeviceType::kCuda;
  const int64_t n = gpu ? kGpuProductSize : kProductSize;
  const auto elements = static_cast<size_t>(n * n);
  std::mt19937_64 random(1);
  std::vector<std::byte> values;
  const auto random_matrix = [&](DType type) {
    values.resize(elements * SizeOf(type));
    // Random values are drawn once and repeated: drawing all of a GPU's matrix would take a second.
    const size_t drawn = std::min(elements, kDrawn);
    for (size_t i = 0; i < drawn; ++i) {
      // Uniform in [-1, 1)
      const float value = static_cast<float>(static_cast<int32_t>(random() >> 32)) * 0x1p-31f;
      if (type == DType::kBF16) {
        reinterpret_cast<bf16*>(values.data())[i] = bf16(value);
      } else if (type == DType::kF16) {
        reinterpret_cast<f16*>(values.data())[i] = f16(value);
      } else {
        reinterpret_cast<float*>(values.data())[i] = value;
      }
    }
    const size_t part = drawn * SizeOf(type);
    for (size_t done = part; done < values.size(); done += part) {
      std::memcpy(values.data() + done, values.data(), std::min(part, values.size() - done));
    }
    Buffer memory = device.Allocate(values.size());
    device.Upload(memory.data(), values.data(), values.size());
    return memory;
  };
  // On a GPU, matrix products read their inputs in the weights' dtype.
  const DType x_dtype = gpu ? dtype : DType::kF32;
  const Buffer x = random_matrix(x_dtype);
  const Buffer weight = random_matrix(dtype);
  const Buffer y = device.Allocate(elements * sizeof(float));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    ops::Linear(stream, MatrixView::Of(x.data(), x_dtype, n, n),
                MatrixView::Of(weight.data(), dtype, n, n), nullptr,
                MatrixView::Of(y.as<float>(), n, n));
    stream.Synchronize();
    best =
        std::max(best, 2.0 * static_cast<double>(n) * static_cast<double>(elements) / Since(start));
  }
  return best;
}

MachineRates MeasureGpu(Device& device, Stream& stream, DType dtype) {
  constexpr size_t kCopyBytes = size_t{2} << 30;
  constexpr size_t kLinkBytes = size_t{256} << 20;
  MachineRates rates;
  {
    const Buffer from = device.Allocate(kCopyBytes), to = device.Allocate(kCopyBytes);
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto start = Clock::now();
      device.CopyWithin(to.data(), from.data(), kCopyBytes);
      rates.bytes_per_second = std::max(rates.bytes_per_second, 2.0 * kCopyBytes / Since(start));
    }
  }
  const auto mirror = device.CreateMirror(kLinkBytes);
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    mirror->Send(stream, kLinkBytes);
    stream.Synchronize();
    rates.link_bytes_per_second = std::max(rates.link_bytes_per_second, kLinkBytes / Since(start));
  }
  rates.flops_per_second = MeasureMatrixProduct(device, stream, dtype);
  return rates;
}

MachineRates MeasureMachine(Device& device, Stream& stream, ThreadPool& pool, DType dtype) {
  if (device.type() == DeviceType::kCuda) return MeasureGpu(device, stream, dtype);
  return {MeasureBandwidth(pool),
          std::max(MeasureArithmetic(pool, dtype), MeasureMatrixProduct(device, stream, dtype))};
}

}  // namespace litecache::bench
