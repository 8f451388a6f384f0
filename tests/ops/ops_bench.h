// Shared by the benchmarks of operations.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"

namespace litecache::ops {

// The CPU with LITECACHE_BENCH_THREADS threads (all cores).
inline CpuDevice& TheDevice() {
  static CpuDevice device([] {
    const char* threads = std::getenv("LITECACHE_BENCH_THREADS");
    return threads != nullptr ? std::atoi(threads) : 0;
  }());
  return device;
}

// Device memory with random values around zero of the type; freed with the object.
struct Operand {
  Operand(DType dtype, int64_t rows, int64_t cols)
      : buffer(TheDevice().Allocate(static_cast<size_t>(rows * cols) * SizeOf(dtype))),
        view(MatrixView::Of(buffer.data(), dtype, rows, cols)) {
    std::mt19937 random(7);
    std::vector<float> values(8191);  // a prime, so that rows differ
    for (float& x : values) {
      x = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
    }
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float x = values[static_cast<size_t>(i) % values.size()];
      if (dtype == DType::kBF16) static_cast<bf16*>(view.data)[i] = bf16(x);
      if (dtype == DType::kF16) static_cast<f16*>(view.data)[i] = f16(x);
      if (dtype == DType::kF32) static_cast<float*>(view.data)[i] = x;
    }
  }
  Buffer buffer;
  MatrixView view;
};

inline void Report(benchmark::State& state, double bytes, double flops) {
  using benchmark::Counter;
  if (bytes > 0) state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsIterationInvariantRate);
  if (flops > 0) {
    state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsIterationInvariantRate);
  }
}

}  // namespace litecache::ops
