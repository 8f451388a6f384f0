// Products with packed blocks on a GPU: up to 64 rows by the kernel whose weights are exact, more
// by cuBLASLt with the weights rounded to bf16.
#include "ops/linear/quantized_linear_cuda.h"

#include <bit>
#include <cstring>
#include <string>
#include <tuple>

#include "ops/blocks_testing.h"
#include "ops/dense/embedding_cuda.h"
#include "ops/linear/linear.h"
#include "ops/linear/quantized_gemv_cuda.h"
#include "ops/linear/unpack_blocks_cuda.h"
#include "ops/linear_testing_cuda.h"

namespace litecache::ops::cuda {
namespace {

bool HasMinimum(std::string_view format) {
  return format == "Q4_1" || format == "Q5_1" || format == "Q2_K" || format == "Q4_K" ||
         format == "Q5_K";
}

class CudaQuantizedLinearTest : public CudaLinearTest {
 protected:
  MatrixView PackedOnDevice(BlockWeights& weights) {
    MatrixView view = weights.view();
    view.data = Upload(weights.Packed());
    return view;
  }

  // A depth near `cols` that is no multiple of 256, if the format has such.
  static int64_t DepthOf(std::string_view format, int64_t cols) {
    return FormatNamed(format).values == 32 ? cols + 96 : cols;
  }

  // The case with the values that the implementation multiplies.
  LinearCase CaseOf(const BlockWeights& weights, int64_t rows, DType y, bool bias, bool add,
                    int64_t padding) {
    const bool exact = rows <= kMostPiecewiseRows && QuantizedGemvServes();
    LinearCase c{Matrix(DType::kBF16, rows, weights.cols, padding),
                 Matrix(DType::kF32, weights.rows, weights.cols),
                 Matrix::Normal(random_, y, rows, weights.rows, padding),
                 {},
                 add,
                 {},
                 {}};
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < weights.cols; ++i) c.x.Set(t, i, random_.Normal());
    }
    for (int64_t o = 0; o < weights.rows; ++o) {
      for (int64_t i = 0; i < weights.cols; ++i) {
        const float value = weights.At(o, i);
        c.weight.Set(o, i, exact ? value : static_cast<float>(RoundTo(DType::kBF16, value)));
      }
    }
    if (bias) c.bias = RandomVector(weights.rows);
    Refer(c, *weights.format);
    return c;
  }
  void Refer(LinearCase& c, const BlockFormat& format) {
    c.Refer(*target_);
    if (!HasMinimum(format.name)) return;
    // Its integers are summed with 128 added, which is several times their size.
    for (double& tolerance : c.tolerances) tolerance *= 4;
  }

  LinearPart PartOf(const LinearCase& c, const MatrixView& weight) {
    return {weight, c.bias.empty() ? nullptr : Upload(c.bias), OnDevice(c.y)};
  }

  void CheckBlocks(std::string_view format, int64_t rows, int64_t out, int64_t in, DType y,
                   bool bias, bool add, int64_t padding) {
    SCOPED_TRACE(fmt::format("{}, rows {}, out {}, in {} -> {}, bias {}, add {}, padding {}",
                             format, rows, out, in, Name(y), bias, add, padding));
    BlockWeights weights(random_, format, out, in);
    const LinearCase c = CaseOf(weights, rows, y, bias, add, padding);
    const LinearPart part = PartOf(c, PackedOnDevice(weights));
    ops::Linear(*stream_, OnDevice(c.x), {&part, 1}, add ? Epilogue::kAdd : Epilogue::kStore);
    Compare(c, part.y);
    buffers_.clear();
  }

  std::vector<float> Product(const MatrixView& x, const MatrixView& weight) {
    const auto size = static_cast<size_t>(x.rows * weight.rows);
    auto* y = Poisoned<float>(size);
    ops::Linear(*stream_, x, weight, nullptr, MatrixView::Of(y, x.rows, weight.rows));
    return Download(y, size);
  }
};

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
                                        {16, 257, 768}}) {
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
    for (const int64_t rows : {1, 2, 4, 7, 16}) {
      // Several segments of x.
      CheckBlocks(format, rows, 33, 14336, DType::kF32, true, true, 0);
      // Blocks with several tiles, not all with as many; with many rows, several batches of them.
      CheckBlocks(format, rows, 16 * 3 * sms + 5, 512, DType::kF32, false, false, 0);
    }
    CheckBlocks(format, 16, 16 * 9 * sms + 21, 256, DType::kBF16, true, false, 0);
    CheckBlocks(format, 1, 9, 32768, DType::kF32, false, false, 0);
  }
  // Both several segments and several batches.
  CheckBlocks("Q4_K", 9, 16 * 5 * sms, 4608, DType::kF32, false, false, 0);
}

TEST_F(CudaQuantizedLinearTest, ManyRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    for (const auto& [rows, out, in] : {std::tuple<int64_t, int64_t, int64_t>{17, 33, 512},
                                        {40, 16, 1024},
                                        {64, 33, 768},
                                        {65, 33, 512},
                                        {65, 7, 256},
                                        {131, 257, 768}}) {
      CheckBlocks(format, rows, out, DepthOf(format, in), DType::kF32, rows % 2 == 1, rows < 65, 0);
      CheckBlocks(format, rows, out, DepthOf(format, in), DType::kBF16, rows == 64, false, 8);
    }
  }
}

TEST_F(CudaQuantizedLinearTest, PartsOfSeveralFormats) {
  for (const int64_t rows : {1, 5, 16, 70}) {
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
      const auto size = static_cast<size_t>(rows * parts[i].y.cols);
      EXPECT_EQ(Download(parts[i].y.Row<float>(0), size), Download(alone[i].y.Row<float>(0), size));
    }
    buffers_.clear();
  }
}

TEST_F(CudaQuantizedLinearTest, ARowsBitsDoNotDependOnTheOthers) {
  if (!QuantizedGemvServes()) GTEST_SKIP() << "needs sm_90";
  EXPECT_EQ(LinearBatchInvariantRows(DeviceType::kCuda, DType::kBlocks), kMaxGemvRows);
  for (const std::string_view format : kPackedFormats) {
    for (const int64_t in : {int64_t{512}, int64_t{14336}}) {
      constexpr int64_t kOut = 203;
      BlockWeights weights(random_, format, kOut, DepthOf(format, in));
      const MatrixView weight = PackedOnDevice(weights);
      const Matrix x = Matrix::Normal(random_, DType::kBF16, kMaxGemvRows, weights.cols);
      const MatrixView device_x = OnDevice(x);
      const std::vector<float> want = Product(device_x, weight);
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                        {6, 1},
                                        {15, 1},
                                        {7, 2},
                                        {2, 3},
                                        {12, 4},
                                        {3, 5},
                                        {8, 8},
                                        {3, 10}}) {
        SCOPED_TRACE(fmt::format("{}, rows [{}, {}) of {}", format, first, first + rows, in));
        const std::vector<float> got = Product(device_x.Rows(first, rows), weight);
        ASSERT_EQ(std::memcmp(got.data(), want.data() + first * kOut, got.size() * sizeof(float)),
                  0);
      }
      buffers_.clear();
    }
  }
}

TEST_F(CudaQuantizedLinearTest, GatedFewAndManyRows) {
  for (const std::string_view format : {"Q4_K", "Q6_K", "Q8_0", "Q4_0"}) {
    for (const int64_t rows : {1, 2, 7, 16, 20, 70}) {
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
        ops::GatedLinear(*stream_, OnDevice(gate.x), gate_part, up_part);
        const auto want = [&](int64_t t, int64_t o) {
          const double g = gate.Want(t, o);
          return g / (1 + std::exp(-g)) * up.Want(t, o);
        };
        ExpectNear(gate_part.y, want, [&](int64_t t, int64_t o) {
          // As in LinearTest::CheckGated.
          const double g = gate.Want(t, o), u = up.Want(t, o);
          const double gate_error = gate.Tolerance(t, o), up_error = up.Tolerance(t, o);
          return 1.1 * gate_error * (std::abs(u) + up_error) + std::abs(g) * up_error +
                 (std::ldexp(12.0, -24) + Rounding(y_type)) * std::abs(want(t, o));
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
    LinearCase c = CaseOf(weights, 256, DType::kBF16, true, false, 0);
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

TEST_F(CudaQuantizedLinearTest, WeightsOfSeveralSlices) {
  // 80 MiB in bf16.
  constexpr int64_t kOut = 40 * 1024 + 5, kIn = 1024, kRows = 65;
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

TEST_F(CudaQuantizedLinearTest, UnpacksRoundedValues) {
  for (const std::string_view format : kPackedFormats) {
    SCOPED_TRACE(format);
    constexpr int64_t kOut = 71, kFirst = 16;
    BlockWeights weights(random_, format, kOut, DepthOf(format, 512));
    const auto size = static_cast<size_t>((kOut - kFirst) * weights.cols);
    const MatrixView y =
        MatrixView::Of(Poisoned<uint16_t>(size), DType::kBF16, kOut - kFirst, weights.cols);
    UnpackBlocks(AsCuda(*stream_), PackedOnDevice(weights), kFirst, y);
    const std::vector<uint16_t> got = Download(y.Row<uint16_t>(0), size);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(got[i], bf16(weights.values[static_cast<size_t>(kFirst * weights.cols) + i]).bits)
          << i;
    }
  }
}

TEST_F(CudaQuantizedLinearTest, EmbedsTheFormatsValues) {
  const std::vector<int32_t> ids = {0, 70, 16, -1, 33, 71, 15};
  const auto count = static_cast<int64_t>(ids.size());
  for (const std::string_view format : kPackedFormats) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
      SCOPED_TRACE(format);
      BlockWeights weights(random_, format, 71, DepthOf(format, 512), /*any_scales=*/true);
      const int64_t cols = weights.cols, stride = cols + 3;
      const std::vector<float> before = RandomVector(count * stride);
      float* const y = Upload(before);
      MatrixView view = MatrixView::Of(y, count, cols);
      view.stride = stride;
      cuda::Embedding(*stream_, PackedOnDevice(weights), Upload(ids), view, epilogue);
      const std::vector<float> got = Download(y, before.size());
      for (int64_t t = 0; t < count; ++t) {
        const int32_t id = ids[static_cast<size_t>(t)];
        for (int64_t i = 0; i < stride; ++i) {
          const auto at = static_cast<size_t>(t * stride + i);
          if (i < cols && (id < 0 || id >= 71)) {
            ASSERT_TRUE(std::isnan(got[at])) << t << ", " << i;
            continue;
          }
          float want = before[at];
          if (i < cols) {
            want = weights.At(id, i) + (epilogue == Epilogue::kAdd ? before[at] : 0);
            if (epilogue == Epilogue::kStore) want = weights.At(id, i);
          }
          ASSERT_EQ(std::bit_cast<uint32_t>(got[at]), std::bit_cast<uint32_t>(want))
              << t << ", " << i;
        }
      }
    }
  }
}

// Each product overlaps the one before it, whose result it multiplies; also as a graph.
TEST_F(CudaQuantizedLinearTest, AChainOfProducts) {
  constexpr int64_t kWidth = 2048, kRows = 3;
  BlockWeights first(random_, "Q4_K", kWidth, kWidth), second(random_, "Q6_K", kWidth, kWidth);
  const MatrixView a = PackedOnDevice(first), b = PackedOnDevice(second);
  const Matrix x = Matrix::Normal(random_, DType::kBF16, kRows, kWidth);
  const MatrixView device_x = OnDevice(x), h = OnDevice(x);
  const auto size = static_cast<size_t>(kRows * kWidth);
  const MatrixView y = MatrixView::Of(Poisoned<float>(size), kRows, kWidth);
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
    stream_->Run(1, [&] { chain(false); });
    EXPECT_EQ(Download(y.Row<float>(0), size), want) << i;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
