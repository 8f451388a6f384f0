#include "ops/linear/linear_cuda.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "device/cuda/branch.h"
#include "device/cuda/check.h"
#include "device/cuda/sm_split.h"
#include "ops/linear/linear.h"
#include "ops/linear_testing_cuda.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaLinearTest, FewRowsOfManyOutputs) {
  // Warps take several steps along the depth.
  for (int64_t rows : {1, 6, 16}) {
    Check(
        Make(rows, 3 * gpu_->sm_count() + 5, 4096 + 136, DType::kBF16, DType::kF32, true, true, 8));
  }
  // Enough outputs for the launches of wide products on any GPU: 2 and 16 tiles of 8 per SM.
  const int64_t sms = gpu_->sm_count();
  for (int64_t out : {16 * sms + 11, 128 * sms + 13}) {
    for (int64_t rows : {1, 3, 16}) {
      Check(Make(rows, out, 72, DType::kBF16, DType::kF32, true, rows == 3, 0));
    }
  }
}

// Biases as large as the products: where they cancel, rounding the product before adding the bias
// causes an error many times the rounding of their sum.
TEST_F(CudaLinearTest, ABiasIsAddedBeforeTheOnlyRounding) {
  for (const auto& [rows, out, in] :
       {std::tuple<int64_t, int64_t, int64_t>{256, 64, 64}, {256, 136, 264}, {512, 768, 1024}}) {
    for (int64_t padding : {0, 8}) {
      for (bool bias : {true, false}) {
        LinearCase c = Make(rows, out, in, DType::kBF16, DType::kBF16, bias, false, padding);
        std::vector<uint16_t> rounded;
        for (float& x : c.bias) {
          x *= 0.7f * std::sqrt(static_cast<float>(in));
          rounded.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
          x = std::bit_cast<float>(static_cast<uint32_t>(rounded.back()) << 16);
        }
        c.Refer(*target_);
        SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, padding {}, bias {}", rows, out, in,
                                 padding, bias));
        const RoundedPart target{Target(c), bias ? Upload(rounded) : nullptr};
        ops::RoundedLinear(*stream_, OnDevice(c.x), {&target, 1});
        ExpectNear(
            target.part.y, [&](int64_t t, int64_t o) { return c.Want(t, o); },
            [&](int64_t t, int64_t o) {
              const double want = c.Want(t, o);
              // The tolerance of the case without its part for roundings.
              const double product = bias ? c.Product(t, o) : 0, rounding = Rounding(DType::kBF16);
              return c.Tolerance(t, o) - 2 * rounding * (std::abs(want) + std::abs(product)) +
                     rounding * std::abs(want);
            });
      }
    }
  }
}

// One library call if the second product's matrices follow the first's in memory, two if they do
// not.
TEST_F(CudaLinearTest, TwoRoundedProductsOfOneX) {
  for (const auto& [rows, out, in] :
       {std::tuple<int64_t, int64_t, int64_t>{256, 64, 64}, {512, 264, 520}, {768, 640, 384}}) {
    for (bool bias : {true, false}) {
      SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, bias {}", rows, out, in, bias));
      const Matrix x = Matrix::Normal(random_, DType::kBF16, rows, in);
      std::vector<LinearCase> cases;
      std::vector<RoundedPart> parts;
      for (int i = 0; i < 2; ++i) {
        LinearCase c = Make(rows, out, in, DType::kBF16, DType::kBF16, bias, false, 0);
        std::vector<uint16_t> rounded;
        for (float& value : c.bias) {
          rounded.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
          value = std::bit_cast<float>(static_cast<uint32_t>(rounded.back()) << 16);
        }
        SetX(c, x);
        parts.push_back({Target(c), bias ? Upload(rounded) : nullptr});
        cases.push_back(std::move(c));
      }
      const MatrixView device_x = OnDevice(x);
      for (size_t first = 0; first < 2; ++first) {
        for (const RoundedPart& part : parts) {
          gpu_->Zero(part.part.y.data, static_cast<size_t>(rows * out) * sizeof(uint16_t));
        }
        const RoundedPart in_order[] = {parts[first], parts[1 - first]};
        ops::RoundedLinear(*stream_, device_x, in_order);
        for (size_t i = 0; i < 2; ++i) {
          SCOPED_TRACE(fmt::format("{} first, part {}", first, i));
          Compare(cases[i], parts[i].part.y);
        }
      }
    }
  }
}

TEST_F(CudaLinearTest, ARowsBitsDoNotDependOnTheOthers) {
  // 16 rows of 14,344 values fit into no SM's shared memory, one does: only a
  // batch-invariant stream multiplies both with the same kernel.
  for (const int64_t in : {1048, 14344}) {
    if (in == 14344) AsCuda(*stream_).MakeBatchInvariant();
    const LinearCase c = Make(kMaxGemvRows, 203, in, DType::kBF16, DType::kF32, false, false, 0);
    const LinearPart all = Target(c);
    const MatrixView x = OnDevice(c.x);
    const auto product = [&](int64_t first, int64_t rows) {
      const auto size = static_cast<size_t>(rows * 203);
      auto* y = Poisoned<float>(size);
      ops::Linear(*stream_, x.Rows(first, rows), all.weight, nullptr, MatrixView::Of(y, rows, 203));
      return Download(y, size);
    };
    const std::vector<float> want = product(0, kMaxGemvRows);
    for (const auto& [first, rows] :
         {std::pair<int64_t, int64_t>{0, 1}, {6, 1}, {15, 1}, {3, 5}, {3, 10}}) {
      SCOPED_TRACE(fmt::format("rows [{}, {}) of {}", first, first + rows, in));
      const std::vector<float> got = product(first, rows);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], want[static_cast<size_t>(first) * 203 + i]) << i;
      }
    }
  }
}

TEST_F(CudaLinearTest, FewRowsOfLargeWeights) {
  // More than 24 MiB: uses cuBLASLt, except for a bf16 y with a bias.
  Check(Make(1, 3080, 4104, DType::kBF16, DType::kF32, true, true, 0));
  Check(Make(2, 3080, 4104, DType::kBF16, DType::kBF16, true, false, 0));
  Check(Make(2, 3080, 4104, DType::kBF16, DType::kBF16, false, false, 8));
}

}  // namespace
}  // namespace litecache::ops::cuda
