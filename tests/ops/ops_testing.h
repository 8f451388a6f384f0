// Random matrices, conversions and the grid of thread counts and instruction sets that every test
// of an operation runs over.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_isa.h"
#include "test_seed.h"

namespace litecache::ops {

class Random {
 public:
  explicit Random(uint64_t stream = 0) : engine_(testing::TestRandom(stream)) {}
  float Normal(float scale = 1.0f) { return normal_(engine_) * scale; }
  int64_t Integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

inline double RoundTo(DType dtype, float value) {
  if (dtype == DType::kBF16) return static_cast<float>(bf16(value));
  if (dtype == DType::kF16) return static_cast<float>(f16(value));
  return value;
}

// Rows of a storage type, each followed by `padding` NaN elements: reading those would show.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t padding = 0)
      : view_{nullptr, dtype, rows, cols, cols + padding},
        bytes_(static_cast<size_t>(rows * (cols + padding)) * SizeOf(dtype)) {
    view_.data = bytes_.data();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols + padding; ++c) {
        Set(r, c, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  Matrix(const Matrix& other) : view_(other.view_), bytes_(other.bytes_) {
    view_.data = bytes_.data();
  }
  Matrix& operator=(const Matrix&) = delete;

  static Matrix Normal(Random& random, DType dtype, int64_t rows, int64_t cols, int64_t padding = 0,
                       float scale = 1.0f) {
    Matrix m(dtype, rows, cols, padding);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) m.Set(r, c, random.Normal(scale));
    }
    return m;
  }

  const MatrixView& view() const { return view_; }
  float* Row(int64_t r) { return view_.Row<float>(r); }
  double At(int64_t r, int64_t c) const {
    if (view_.dtype == DType::kBF16) return static_cast<float>(view_.Row<bf16>(r)[c]);
    if (view_.dtype == DType::kF16) return static_cast<float>(view_.Row<f16>(r)[c]);
    return view_.Row<float>(r)[c];
  }
  void Set(int64_t r, int64_t c, float value) {
    if (view_.dtype == DType::kBF16) {
      view_.Row<bf16>(r)[c] = bf16(value);
    } else if (view_.dtype == DType::kF16) {
      view_.Row<f16>(r)[c] = f16(value);
    } else {
      view_.Row<float>(r)[c] = value;
    }
  }

 private:
  MatrixView view_;
  std::vector<std::byte> bytes_;
};

// Same bits everywhere, ignoring padding.
inline bool SameBits(const Matrix& a, const Matrix& b) {
  for (int64_t r = 0; r < a.view().rows; ++r) {
    if (std::memcmp(a.view().Row<float>(r), b.view().Row<float>(r),
                    static_cast<size_t>(a.view().cols) * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// Calls body with every level of vector instructions that this machine supports.
template <class Body>
void ForEachIsa(const Body& body) {
  LimitCpuIsa(CpuIsa::kAvx512Bf16);
  const CpuIsa best = ActiveCpuIsa();
  for (CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    if (isa > best) break;
    LimitCpuIsa(isa);
    SCOPED_TRACE(std::string(Name(isa)));
    body();
  }
  LimitCpuIsa(CpuIsa::kAvx512Bf16);
}

// The same, body(stream) on a CPU's stream.
template <class Body>
void ForEachIsa(int threads, const Body& body) {
  CpuDevice device(threads);
  auto stream = device.CreateStream();
  SCOPED_TRACE(std::to_string(threads) + " threads");
  ForEachIsa([&] { body(*stream); });
}

// Sinks of query heads (ops/attention/softmax.h): most are near the scores, some take all weight or
// none.
inline std::vector<float> RandomSinks(Random& random, int64_t q_heads) {
  std::vector<float> sinks;
  for (int64_t j = 0; j < q_heads; ++j) {
    const float extreme[] = {25, 95, 1e4f, 3e38f};
    const float sign = random.Integer(0, 1) == 0 ? -1.0f : 1.0f;
    sinks.push_back(random.Integer(0, 4) == 0 ? sign * extreme[random.Integer(0, 3)]
                                              : 1 + random.Normal(1.5f));
  }
  return sinks;
}

}  // namespace litecache::ops
