// Products with packed blocks on a GPU: up to 8 rows by the kernel whose weights are exact, up to
// 128 by the one that rounds scales and weights to bf16 (8-bit weights only), and more by cuBLASLt
// with weights rounded to bf16.
#include <cmath>
#include <tuple>

#include "ops/quantized_linear_testing_cuda.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaQuantizedLinearTest, FewRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    int64_t i = 0;
    for (const auto& [rows, out, in] : {std::tuple<int64_t, int64_t, int64_t>{1, 257, 2048},
                                        {1, 7, 256},
                                        {2, 33, 4352},
                                        {3, 1, 768},
                                        {4, 33, 2304},
                                        {5, 16, 256},
                                        {8, 40, 2304},
                                        {9, 1, 512},
                                        {13, 17, 4096},
                                        {16, 257, 768},
                                        {11, 130, 1280},
                                        {12, 33, 2304}}) {
      const bool f32 = i % 3 != 1;
      CheckBlocks(format, rows, out, DepthOf(format, in), f32 ? DType::kF32 : DType::kBF16,
                  i % 2 == 0, f32 && i % 4 < 2, f32 ? i % 4 : 8 * (i % 2));
      ++i;
    }
  }
}

TEST_F(CudaQuantizedLinearTest, DeepAndWideProducts) {
  const int64_t sms = gpu_->sm_count();
  for (const std::string_view format : {"Q4_K", "Q6_K", "Q8_0"}) {
    for (const int64_t rows : {1, 2, 4, 7, 16, 27, 64}) {
      // Several segments of x.
      CheckBlocks(format, rows, 33, 14336, DType::kF32, true, true, 0);
      // Blocks with several tiles, not all with as many; with many rows, several batches of them.
      CheckBlocks(format, rows, 16 * 3 * sms + 5, 512, DType::kF32, false, false, 0);
    }
    CheckBlocks(format, 8, 16 * 9 * sms + 21, 256, DType::kBF16, true, false, 0);
    CheckBlocks(format, 16, 16 * 9 * sms + 21, 256, DType::kBF16, true, false, 0);
    CheckBlocks(format, 1, 9, 32768, DType::kF32, false, false, 0);
  }
  // Both several segments and several batches.
  CheckBlocks("Q4_K", 7, 16 * 5 * sms, 4608, DType::kF32, false, false, 0);
  // On 132 SMs, clusters of three and of seven blocks, and of two with several blocks of outputs.
  CheckBlocks("Q4_K", 9, 128 * 67 - 20, 4096, DType::kF32, false, false, 0);
  CheckBlocks("Q4_0", 17, 128 * 19, 14336, DType::kF32, true, true, 0);
  CheckBlocks("Q4_K", 9, 128 * 270, 1536, DType::kF32, false, false, 0);
  CheckBlocks("Q6_K", 35, 128 * 140 - 20, 1536, DType::kBF16, true, false, 0);
}

TEST_F(CudaQuantizedLinearTest, ManyRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    for (const auto& [rows, out, in] : {std::tuple<int64_t, int64_t, int64_t>{17, 33, 512},
                                        {24, 129, 2304},
                                        {33, 7, 1280},
                                        {40, 16, 1024},
                                        {49, 145, 2048},
                                        {64, 33, 768},
                                        {65, 33, 512},
                                        {101, 257, 768},
                                        {128, 1, 256},
                                        {129, 33, 512},
                                        {203, 7, 256}}) {
      CheckBlocks(format, rows, out, DepthOf(format, in), DType::kF32, rows % 2 == 1, rows < 65, 0);
      CheckBlocks(format, rows, out, DepthOf(format, in), DType::kBF16, rows == 64, false, 8);
    }
    // x is not aligned.
    CheckBlocks(format, 21, 33, DepthOf(format, 512), DType::kF32, false, true, 3);
  }
}

// Every number of rows.
TEST_F(CudaQuantizedLinearTest, NineToSeventyRows) {
  for (int64_t rows = 9; rows <= 70; ++rows) {
    CheckBlocks(rows % 3 == 0   ? "Q4_K"
                : rows % 3 == 1 ? "Q6_K"
                                : "Q8_0",
                rows, 40 + rows, 1536, rows % 5 == 0 ? DType::kBF16 : DType::kF32, rows % 2 == 0,
                rows % 5 == 1, 0);
  }
}

TEST_F(CudaQuantizedLinearTest, PartsOfSeveralFormats) {
  for (const int64_t rows : {1, 5, 9, 16, 40, 70, 200}) {
    SCOPED_TRACE(rows);
    std::vector<LinearCase> cases;
    std::vector<LinearPart> parts, alone;
    Matrix x(DType::kBF16, rows, 1024);
    for (const auto& [format, out] : {std::pair<std::string_view, int64_t>{"Q4_K", 257},
                                      {"Q4_K", 33},
                                      {"Q6_K", 48},
                                      {"Q8_0", 16},
                                      {"IQ4_NL", 7},
                                      {"Q8_0", 1},
                                      {"Q8_0", 65},
                                      {"Q8_0", 31}}) {
      BlockWeights weights(random_, format, out, 1024);
      LinearCase c = CaseOf(weights, rows, DType::kF32, out % 2 == 1, false, 0);
      if (cases.empty()) {
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t i = 0; i < 1024; ++i) x.Set(t, i, static_cast<float>(c.x.At(t, i)));
        }
      }
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < 1024; ++i) c.x.Set(t, i, static_cast<float>(x.At(t, i)));
      }
      Refer(c, *weights.format);
      parts.push_back(PartOf(c, PackedOnDevice(weights)));
      alone.push_back(parts.back());
      alone.back().y = OnDevice(c.y);
      cases.push_back(std::move(c));
    }
    const MatrixView device_x = OnDevice(x);
    ops::Linear(*stream_, device_x, parts);
    for (const LinearPart& part : alone) ops::Linear(*stream_, device_x, {&part, 1});
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(fmt::format("part {}", i));
      Compare(cases[i], parts[i].y);
      Compare(cases[i], alone[i].y);
      // The kernel for 9 and more rows divides the depth as the number of outputs requires.
      if (rows > kMaxQuantizedGemvRows && rows <= kMostPiecewiseRows) continue;
      const auto size = static_cast<size_t>(rows * parts[i].y.cols);
      EXPECT_EQ(Download(parts[i].y.Row<float>(0), size), Download(alone[i].y.Row<float>(0), size));
    }
    buffers_.clear();
  }
}

TEST_F(CudaQuantizedLinearTest, OnGpusWithLittleSharedMemory) {
  if (!QuantizedGemvServes()) GTEST_SKIP() << "needs sm_80";
  const LittleSharedMemory little;
  EXPECT_FALSE(QuantizedGemmServes(kAlignedX));
  for (const std::string_view format : kPackedFormats) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 23, 32, 33}) {
      const int64_t in = DepthOf(format, rows % 4 == 1 ? 14336 : 1280);
      CheckBlocks(format, rows, 257, in, rows % 2 == 1 ? DType::kF32 : DType::kBF16, rows % 3 == 0,
                  rows == 3, 0);
    }
  }
  // Blocks with several tiles.
  CheckBlocks("Q4_K", 1, 16 * 7 * gpu_->sm_count() + 5, 512, DType::kF32, false, false, 0);
  CheckBlocks("Q8_0", 4, 16 * 7 * gpu_->sm_count() + 5, 512, DType::kF32, true, false, 0);
}

TEST_F(CudaQuantizedLinearTest, GatedFewAndManyRows) {
  for (const std::string_view format : {"Q4_K", "Q6_K", "Q8_0", "Q4_0"}) {
    for (const int64_t rows : {1, 2, 7, 8, 9, 16, 20, 61, 70, 200}) {
      for (const int64_t out : {int64_t{7}, int64_t{257}, int64_t{16} * gpu_->sm_count() * 3 + 1}) {
        if (out > 257 && rows > 16) continue;
        const DType y_type = out == 7 ? DType::kF32 : DType::kBF16;
        SCOPED_TRACE(fmt::format("{}, rows {}, out {}", format, rows, out));
        BlockWeights gate_weights(random_, format, out, 512), up_weights(random_, format, out, 512);
        const LinearCase gate = CaseOf(gate_weights, rows, y_type, rows % 2 == 0, false, 0);
        LinearCase up = CaseOf(up_weights, rows, y_type, rows == 2, false, 0);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t i = 0; i < 512; ++i) up.x.Set(t, i, static_cast<float>(gate.x.At(t, i)));
        }
        Refer(up, *up_weights.format);
        const LinearPart gate_part = PartOf(gate, PackedOnDevice(gate_weights));
        const LinearPart up_part = PartOf(up, PackedOnDevice(up_weights));
        const GateFunction functions[] = {kSilu, kGeluTanh, kClampedSwiglu};
        const GateFunction& function = functions[(rows + out) % 3];
        ops::GatedLinear(*stream_, OnDevice(gate.x), gate_part, up_part, function);
        ExpectNear(
            gate_part.y,
            [&](int64_t t, int64_t o) {
              return GatedValue(function, gate.Want(t, o), up.Want(t, o));
            },
            [&](int64_t t, int64_t o) {
              return GatedError(function, gate.Want(t, o), gate.Tolerance(t, o), up.Want(t, o),
                                up.Tolerance(t, o), Rounding(y_type));
            });
        buffers_.clear();
      }
    }
  }
}

TEST_F(CudaQuantizedLinearTest, RoundedProducts) {
  for (const std::string_view format : {"Q4_K", "Q8_0"}) {
    SCOPED_TRACE(format);
    BlockWeights weights(random_, format, 136, 512);
    for (const int64_t rows : {24, 256}) {
      LinearCase c = CaseOf(weights, rows, DType::kBF16, true, false, 0);
      std::vector<uint16_t> rounded;
      for (float& value : c.bias) {
        rounded.push_back(bf16(value).bits);
        value = static_cast<float>(bf16(value));
      }
      Refer(c, *weights.format);
      const RoundedPart part{PartOf(c, PackedOnDevice(weights)), Upload(rounded)};
      const RoundedPart parts[] = {part, part};
      ops::RoundedLinear(*stream_, OnDevice(c.x), parts);
      Compare(c, part.part.y);
    }
  }
}

TEST_F(CudaQuantizedLinearTest, WeightsOfSeveralSlices) {
  // 80 MiB in bf16.
  constexpr int64_t kOut = 40 * 1024 + 5, kIn = 1024, kRows = kMostPiecewiseRows + 1;
  BlockWeights weights(random_, "Q4_K", kOut, kIn);
  PrepareUnpacking(*stream_);
  const Matrix x = Matrix::Normal(random_, DType::kBF16, kRows, kIn);
  const std::vector<float> got = Product(OnDevice(x), PackedOnDevice(weights));
  for (int64_t o = 0; o < kOut; o += o < 64 || o > kOut - 64 ? 1 : 61) {
    const int64_t t = o % kRows;
    double want = 0, magnitudes = 0;
    for (int64_t i = 0; i < kIn; ++i) {
      const double term = RoundTo(DType::kBF16, weights.At(o, i)) * x.At(t, i);
      want += term;
      magnitudes += std::abs(term);
    }
    ASSERT_NEAR(got[static_cast<size_t>(t * kOut + o)], want,
                target_->SumError(kIn, magnitudes, want))
        << o;
  }
}

// Each product overlaps the one before it, whose result it multiplies; also as a graph.
TEST_F(CudaQuantizedLinearTest, AChainOfProducts) {
  constexpr int64_t kWidth = 2048;
  BlockWeights first(random_, "Q4_K", kWidth, kWidth), second(random_, "Q6_K", kWidth, kWidth);
  const MatrixView a = PackedOnDevice(first), b = PackedOnDevice(second);
  for (const int64_t rows : {3, 12, 50, 100}) {
    SCOPED_TRACE(rows);
    const Matrix x = Matrix::Normal(random_, DType::kBF16, rows, kWidth);
    const MatrixView device_x = OnDevice(x), h = OnDevice(x);
    const auto size = static_cast<size_t>(rows * kWidth);
    const MatrixView y = MatrixView::Of(Poisoned<float>(size), rows, kWidth);
    const auto chain = [&](bool wait) {
      const auto then = [&] {
        if (wait) stream_->Synchronize();
      };
      ops::Linear(*stream_, device_x, a, nullptr, y), then();
      for (int i = 0; i < 10; ++i) {
        ops::Linear(*stream_, device_x, b, nullptr, y, Epilogue::kAdd), then();
        ops::Linear(*stream_, device_x, a, nullptr, h), then();
        ops::Linear(*stream_, h, b, nullptr, y, Epilogue::kAdd), then();
      }
    };
    chain(true);
    const std::vector<float> want = Download(y.Row<float>(0), size);
    chain(false);
    EXPECT_EQ(Download(y.Row<float>(0), size), want);
    for (int i = 0; i < 4; ++i) {
      stream_->Run(static_cast<uint64_t>(rows), [&] { chain(false); });
      EXPECT_EQ(Download(y.Row<float>(0), size), want) << i;
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
