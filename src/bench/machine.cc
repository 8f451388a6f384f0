#include "bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/matrix_view.h"
#include "ops/linear.h"

namespace litecache::bench {
namespace {

// Larger than any last-level cache a few cores can reach; faulting it in takes 0.1 s.
constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr int kPasses = 8;
// A product of this size takes milliseconds and keeps all of a kernel's blocking busy.
constexpr int64_t kProductSize = 1536;

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The sum keeps the compiler from leaving the reads out; eight chains keep loads in flight.
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
  const int64_t n = kProductSize;
  const auto elements = static_cast<size_t>(n * n);
  const Buffer x = device.Allocate(elements * sizeof(float));
  const Buffer weight = device.Allocate(elements * SizeOf(dtype));
  const Buffer y = device.Allocate(elements * sizeof(float));
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t i = 0; i < elements; ++i) {
    x.as<float>()[i] = uniform(random);
    const float value = uniform(random);
    if (dtype == DType::kBF16) {
      weight.as<bf16>()[i] = bf16(value);
    } else if (dtype == DType::kF16) {
      weight.as<f16>()[i] = f16(value);
    } else {
      weight.as<float>()[i] = value;
    }
  }
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    ops::Linear(stream, MatrixView::Of(x.as<float>(), n, n),
                MatrixView::Of(weight.data(), dtype, n, n), nullptr,
                MatrixView::Of(y.as<float>(), n, n));
    stream.Synchronize();
    best =
        std::max(best, 2.0 * static_cast<double>(n) * static_cast<double>(elements) / Since(start));
  }
  return best;
}

MachineRates MeasureMachine(Device& device, Stream& stream, ThreadPool& pool, DType dtype) {
  return {MeasureBandwidth(pool),
          std::max(MeasureArithmetic(pool, dtype), MeasureMatrixProduct(device, stream, dtype))};
}

}  // namespace litecache::bench
