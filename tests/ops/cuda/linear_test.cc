#include "ops/dense/linear.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "device/cuda/branch.h"
#include "device/cuda/check.h"
#include "device/cuda/sm_split.h"
#include "ops/cuda/dense_testing.h"
#include "ops/cuda/products/gemv.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

// One product on both sides: random operands, the double-precision sums and their tolerances.
struct Case {
  Matrix x, weight, y;
  std::vector<float> bias;
  bool add;

  double Want(int64_t t, int64_t o) const {
    double sum = add ? y.At(t, o) : 0;
    if (!bias.empty()) sum += bias[static_cast<size_t>(o)];
    for (int64_t i = 0; i < x.view().cols; ++i) sum += x.At(t, i) * weight.At(o, i);
    return sum;
  }
  // f32 sums of n products in blocks, truncated by tensor cores: sqrt(n) units of the sum of
  // magnitudes, far below one missing product.
  double Tolerance(int64_t t, int64_t o) const {
    double magnitudes = add ? std::abs(y.At(t, o)) : 0;
    if (!bias.empty()) magnitudes += std::abs(bias[static_cast<size_t>(o)]);
    const int64_t n = x.view().cols;
    for (int64_t i = 0; i < n; ++i) magnitudes += std::abs(x.At(t, i) * weight.At(o, i));
    const double rounding = y.view().dtype == DType::kBF16 ? kBf16Rounding : 0;
    // A bias is added to the product's bf16: two roundings.
    const double product = bias.empty() ? 0 : std::abs(Want(t, o) - bias[static_cast<size_t>(o)]);
    return std::ldexp(1.0, -22) * (std::sqrt(static_cast<double>(n)) + 8) * magnitudes +
           2 * rounding * (std::abs(Want(t, o)) + product);
  }
};

class LinearTest : public DenseTest {
 protected:
  Case Make(int64_t rows, int64_t out, int64_t in, DType dtype, DType y_dtype, bool bias, bool add,
            int64_t padding) {
    Case c{Matrix::Normal(random_, dtype, rows, in, padding),
           Matrix::Normal(random_, dtype, out, in, padding),
           Matrix::Normal(random_, y_dtype, rows, out, padding),
           {},
           add};
    if (bias) c.bias = RandomVector(out);
    return c;
  }
  LinearPart Target(const Case& c) {
    return {OnDevice(c.weight), c.bias.empty() ? nullptr : Upload(c.bias), OnDevice(c.y)};
  }
  void Compare(const Case& c, const MatrixView& y) {
    ExpectNear(
        y, [&](int64_t t, int64_t o) { return c.Want(t, o); },
        [&](int64_t t, int64_t o) { return c.Tolerance(t, o); });
  }
  void Check(const Case& c) {
    SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, {} -> {}, stride {}, bias {}, add {}",
                             c.x.view().rows, c.weight.view().rows, c.x.view().cols,
                             Name(c.x.view().dtype), Name(c.y.view().dtype), c.x.view().stride,
                             !c.bias.empty(), c.add));
    const LinearPart target = Target(c);
    const MatrixView x = OnDevice(c.x);
    ops::Linear(*stream_, x, target.weight, target.bias, target.y,
                c.add ? Epilogue::kAdd : Epilogue::kStore);
    Compare(c, target.y);
    if (x.dtype == DType::kBF16 && x.rows <= kMaxGemvRows) {
      // What GPUs before sm_90 run.
      SCOPED_TRACE("plain GEMV");
      const LinearPart again = Target(c);
      Gemv(*stream_, x, {&again, 1}, c.add ? Epilogue::kAdd : Epilogue::kStore);
      Compare(c, again.y);
    }
  }

  // silu(gate) * up of one x.
  void CheckGated(int64_t rows, int64_t out, int64_t in, DType y_dtype, bool bias,
                  int64_t padding) {
    SCOPED_TRACE(fmt::format("gated, rows {}, out {}, in {} -> {}, bias {}, padding {}", rows, out,
                             in, Name(y_dtype), bias, padding));
    const Case gate = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    Case up = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < in; ++i) up.x.Set(t, i, static_cast<float>(gate.x.At(t, i)));
    }
    const LinearPart gate_part = Target(gate), up_part = Target(up);
    ops::GatedLinear(*stream_, OnDevice(gate.x), gate_part, up_part);
    const auto want = [&](int64_t t, int64_t o) {
      const double g = gate.Want(t, o);
      return g / (1 + std::exp(-g)) * up.Want(t, o);
    };
    ExpectNear(gate_part.y, want, [&](int64_t t, int64_t o) {
      // silu's slope is at most 1.1, and |silu(g)| <= |g|. Twice bf16's rounding: many rows round
      // gate and up before they are multiplied.
      const double g = gate.Want(t, o), u = up.Want(t, o);
      const double gate_error = gate.Tolerance(t, o), up_error = up.Tolerance(t, o);
      const double rounding = y_dtype == DType::kBF16 ? kBf16Rounding : 0;
      return 1.1 * gate_error * (std::abs(u) + up_error) + std::abs(g) * up_error +
             (std::ldexp(8.0, -24) + rounding) * std::abs(want(t, o));
    });
  }
};

TEST_F(LinearTest, FewRowsOfAnySize) {
  // Widths that are no multiple of a step, of a chunk (read element by element), and of one chunk.
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 8},
                                {7, 40},
                                {9, 37},
                                {131, 1032},
                                {64, 4096},
                                {257, 2048 + 8},
                                {33, 511}}) {
    for (int64_t rows : {1, 2, 5, 8, 9, 16}) {
      const bool odd = (rows + out) % 2 == 1;
      Check(Make(rows, out, in, DType::kBF16, DType::kF32, odd, rows % 3 == 2, 0));
      Check(Make(rows, out, in, DType::kBF16, DType::kBF16, !odd, false, 8));
      if (rows == 5) Check(Make(rows, out, in, DType::kBF16, DType::kF32, odd, true, 3));
    }
  }
}

TEST_F(LinearTest, FewRowsOfManyOutputs) {
  // Several turns of the warps along the depth.
  for (int64_t rows : {1, 6, 16}) {
    Check(
        Make(rows, 3 * gpu_->sm_count() + 5, 4096 + 136, DType::kBF16, DType::kF32, true, true, 8));
  }
  // Enough outputs for the launches of wide products on any GPU: 2 and 16 tiles of 8 an SM.
  const int64_t sms = gpu_->sm_count();
  for (int64_t out : {16 * sms + 11, 128 * sms + 13}) {
    for (int64_t rows : {1, 3, 16}) {
      Check(Make(rows, out, 72, DType::kBF16, DType::kF32, true, rows == 3, 0));
    }
  }
}

TEST_F(LinearTest, FewRowsOfAnyDepth) {
  // Rings of whole and of half an SM's shared memory, and x that fits neither; more outputs than
  // blocks and fewer.
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{140, 14336},
                                {20, 14344},
                                {1200, 1024},
                                {300, 4096},
                                {20, 32768}}) {
    for (int64_t rows : {1, 6, 16}) {
      Check(Make(rows, out, in, DType::kBF16, DType::kF32, rows == 6, rows == 1, 0));
    }
  }
}

TEST_F(LinearTest, GatedFewAndManyRows) {
  for (const auto& [out, in] :
       {std::pair<int64_t, int64_t>{1, 8}, {7, 40}, {9, 37}, {133, 1032}, {300, 2048}}) {
    for (int64_t rows : {1, 2, 5, 8, 9, 16, 33}) {
      CheckGated(rows, out, in, DType::kBF16, rows % 2 == 0, rows == 5 ? 8 : 0);
      if (rows < 9) CheckGated(rows, out, in, DType::kF32, rows % 2 == 1, 3);
    }
  }
}

TEST_F(LinearTest, ManyRows) {
  for (const auto& [out, in] :
       {std::pair<int64_t, int64_t>{64, 128}, {136, 264}, {33, 37}, {7, 1032}}) {
    for (int64_t rows : {17, 64, 131}) {
      const bool odd = (rows + out) % 2 == 1;
      Check(Make(rows, out, in, DType::kBF16, DType::kF32, odd, rows == 64, 0));
      Check(Make(rows, out, in, DType::kBF16, DType::kF32, !odd, rows != 64, 8));
      Check(Make(rows, out, in, DType::kBF16, DType::kBF16, true, false, 8));
      Check(Make(rows, out, in, DType::kBF16, DType::kBF16, false, false, 1));
    }
  }
}

// Biases as large as the products: where they cancel, a product that was rounded before its bias
// came is wrong by the rounding of both, many times that of their sum.
TEST_F(LinearTest, ABiasIsAddedBeforeTheOnlyRounding) {
  for (const auto& [rows, out, in] :
       {std::tuple<int64_t, int64_t, int64_t>{256, 64, 64}, {256, 136, 264}, {512, 768, 1024}}) {
    for (int64_t padding : {0, 8}) {
      for (bool bias : {true, false}) {
        Case c = Make(rows, out, in, DType::kBF16, DType::kBF16, bias, false, padding);
        std::vector<uint16_t> rounded;
        for (float& x : c.bias) {
          x *= 0.7f * std::sqrt(static_cast<float>(in));
          rounded.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
          x = std::bit_cast<float>(static_cast<uint32_t>(rounded.back()) << 16);
        }
        SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, padding {}, bias {}", rows, out, in,
                                 padding, bias));
        const RoundedPart target{Target(c), bias ? Upload(rounded) : nullptr};
        ops::RoundedLinear(*stream_, OnDevice(c.x), {&target, 1});
        ExpectNear(
            target.part.y, [&](int64_t t, int64_t o) { return c.Want(t, o); },
            [&](int64_t t, int64_t o) {
              const double want = c.Want(t, o);
              // Case's tolerance without what it has for roundings.
              const double product = bias ? want - c.bias[static_cast<size_t>(o)] : 0;
              return c.Tolerance(t, o) - 2 * kBf16Rounding * (std::abs(want) + std::abs(product)) +
                     kBf16Rounding * std::abs(want);
            });
      }
    }
  }
}

// One call of the library where the second's matrices lie behind the first's, two where they do
// not.
TEST_F(LinearTest, TwoRoundedProductsOfOneX) {
  for (const auto& [rows, out, in] :
       {std::tuple<int64_t, int64_t, int64_t>{256, 64, 64}, {512, 264, 520}, {768, 640, 384}}) {
    for (bool bias : {true, false}) {
      SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, bias {}", rows, out, in, bias));
      const Matrix x = Matrix::Normal(random_, DType::kBF16, rows, in);
      std::vector<Case> cases;
      std::vector<RoundedPart> parts;
      for (int i = 0; i < 2; ++i) {
        Case c = Make(rows, out, in, DType::kBF16, DType::kBF16, bias, false, 0);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t j = 0; j < in; ++j) c.x.Set(t, j, static_cast<float>(x.At(t, j)));
        }
        std::vector<uint16_t> rounded;
        for (float& value : c.bias) {
          rounded.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
          value = std::bit_cast<float>(static_cast<uint32_t>(rounded.back()) << 16);
        }
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

TEST_F(LinearTest, F32WeightsMultiplyInF32) {
  for (int64_t rows : {1, 3, 16, 61}) {
    Check(Make(rows, 67, 259, DType::kF32, DType::kF32, rows == 3, false, 0));
    Check(Make(rows, 128, 256, DType::kF32, DType::kF32, rows != 3, true, 4));
  }
}

TEST_F(LinearTest, SeveralProductsOfOneX) {
  for (int64_t rows : {1, 7, 16, 40}) {
    SCOPED_TRACE(rows);
    const Matrix x = Matrix::Normal(random_, DType::kBF16, rows, 264);
    std::vector<Case> cases;
    std::vector<LinearPart> targets;
    for (int64_t out : {136, 1, 24, 515, 9, 8}) {
      Case c = Make(rows, out, 264, DType::kBF16, out % 2 == 0 ? DType::kF32 : DType::kBF16,
                    out == 24 || out == 9, false, 8);
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < 264; ++i) c.x.Set(t, i, static_cast<float>(x.At(t, i)));
      }
      targets.push_back(Target(c));
      cases.push_back(std::move(c));
    }
    ops::Linear(*stream_, OnDevice(x), targets);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      Compare(cases[i], targets[i].y);
    }
  }
}

TEST_F(LinearTest, ARowsBitsDoNotDependOnTheOthers) {
  const Case c = Make(kMaxGemvRows, 203, 1048, DType::kBF16, DType::kF32, false, false, 0);
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
    SCOPED_TRACE(fmt::format("rows [{}, {})", first, first + rows));
    const std::vector<float> got = product(first, rows);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[static_cast<size_t>(first) * 203 + i]) << i;
    }
  }
}

TEST_F(LinearTest, FewRowsOfLargeWeights) {
  // More than 24 MiB: cuBLASLt's, except for a bf16 y with a bias.
  Check(Make(1, 3080, 4104, DType::kBF16, DType::kF32, true, true, 0));
  Check(Make(2, 3080, 4104, DType::kBF16, DType::kBF16, true, false, 0));
  Check(Make(2, 3080, 4104, DType::kBF16, DType::kBF16, false, false, 8));
}

TEST_F(LinearTest, AChainOfProducts) {
  // Each multiplies, adds to or overwrites what the one before it wrote, with the stream's other
  // work between: also as a graph's first node and after a fork.
  PrepareLinear(*stream_);
  constexpr int64_t kWidth = 1544, kRows = 3;
  const auto make = [&](bool add) {
    return Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, true, add, 0);
  };
  const Case c = make(false), d = make(true);
  const LinearPart first = Target(c), second = Target(d);
  const MatrixView x = OnDevice(c.x);
  const MatrixView between = OnDevice(d.x);
  const size_t bytes = static_cast<size_t>(kRows * kWidth) * sizeof(float);
  const auto chain = [&] {
    for (int i = 0; i < 20; ++i) {
      ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
      Convert(*stream_, first.y, between);
      ops::Linear(*stream_, between, second.weight, second.bias, second.y, Epilogue::kStore);
      ops::Linear(*stream_, between, first.weight, first.bias, second.y, Epilogue::kAdd);
      ops::Linear(*stream_, x, second.weight, nullptr, first.y, Epilogue::kAdd);
      LC_CUDA(cudaMemsetAsync(first.y.data, 0, bytes / 2, AsCuda(*stream_).handle()));
      ops::Linear(*stream_, between, second.weight, nullptr, first.y, Epilogue::kAdd);
    }
  };
  const auto results = [&] {
    stream_->Synchronize();
    std::vector<float> all = Download(first.y.Row<float>(0), static_cast<size_t>(kRows * kWidth));
    const auto more = Download(second.y.Row<float>(0), static_cast<size_t>(kRows * kWidth));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // The truth: every product waited for.
  ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
  stream_->Synchronize();
  Convert(*stream_, first.y, between);
  stream_->Synchronize();
  ops::Linear(*stream_, between, second.weight, second.bias, second.y, Epilogue::kStore);
  stream_->Synchronize();
  ops::Linear(*stream_, between, first.weight, first.bias, second.y, Epilogue::kAdd);
  stream_->Synchronize();
  ops::Linear(*stream_, x, second.weight, nullptr, first.y, Epilogue::kAdd);
  stream_->Synchronize();
  LC_CUDA(cudaMemsetAsync(first.y.data, 0, bytes / 2, AsCuda(*stream_).handle()));
  stream_->Synchronize();
  ops::Linear(*stream_, between, second.weight, nullptr, first.y, Epilogue::kAdd);
  const std::vector<float> want = results();
  chain();
  EXPECT_EQ(results(), want);

  CUstream_st* const handle = AsCuda(*stream_).handle();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStream_t side = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
  LC_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  LC_CUDA(cudaEventCreate(&forked));
  LC_CUDA(cudaEventCreate(&joined));
  LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  LC_CUDA(cudaEventRecord(forked, handle));
  LC_CUDA(cudaStreamWaitEvent(side, forked, 0));
  LC_CUDA(cudaMemsetAsync(second.y.data, 0xff, bytes, side));
  LC_CUDA(cudaEventRecord(joined, side));
  ops::Linear(*stream_, x, first.weight, first.bias, first.y, Epilogue::kStore);
  LC_CUDA(cudaStreamWaitEvent(handle, joined, 0));
  chain();
  LC_CUDA(cudaStreamEndCapture(handle, &graph));
  LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) LC_CUDA(cudaGraphLaunch(executable, handle));
  EXPECT_EQ(results(), want);
  LC_CUDA(cudaGraphExecDestroy(executable));
  LC_CUDA(cudaGraphDestroy(graph));
  LC_CUDA(cudaEventDestroy(forked));
  LC_CUDA(cudaEventDestroy(joined));
  LC_CUDA(cudaStreamDestroy(side));
}

TEST_F(LinearTest, OverlapsNothingButTheKernelBefore) {
  // Between products that may overlap, a fork after one of them, work on the other branch that
  // reads what it wrote, and a join; copies on the way. As a graph of many layers, replayed.
  constexpr int64_t kWidth = 2048, kRows = 2;
  const Case c = Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, false, false, 0);
  const Case d = Make(kRows, kWidth, kWidth, DType::kBF16, DType::kF32, false, false, 0);
  const LinearPart first = Target(c), second = Target(d);
  const std::vector<float> ones(static_cast<size_t>(kWidth), 1.0f);
  const float* norm = Upload(ones);
  const MatrixView x = OnDevice(c.x), h = OnDevice(d.x);
  const auto side_stream = gpu_->CreateStream();
  const auto size = static_cast<size_t>(kRows * kWidth);
  const MatrixView side_y = MatrixView::Of(Poisoned<float>(size), kRows, kWidth);
  const MatrixView side_h = OnDevice(d.x);
  auto* spare = Poisoned<float>(size);
  CUstream_st* const handle = AsCuda(*stream_).handle();
  CUstream_st* const side = AsCuda(*side_stream).handle();
  cudaEvent_t forked = nullptr, joined = nullptr;
  LC_CUDA(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  LC_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  // wait: every operation waits for the one before it.
  const auto layers = [&](bool wait) {
    const auto done = [&] {
      if (wait) LC_CUDA(cudaDeviceSynchronize());
    };
    ops::Linear(*stream_, x, first.weight, nullptr, first.y);
    done();
    for (int i = 0; i < 12; ++i) {
      RmsNorm(*stream_, first.y, norm, 1e-5f, 1, h);
      done();
      ops::Linear(*stream_, h, second.weight, nullptr, second.y);
      done();
      LC_CUDA(cudaEventRecord(forked, handle));
      LC_CUDA(cudaStreamWaitEvent(side, forked, 0));
      RmsNorm(*side_stream, second.y, norm, 1e-5f, 1, side_h);
      done();
      ops::Linear(*side_stream, side_h, first.weight, nullptr, side_y);
      done();
      LC_CUDA(cudaEventRecord(joined, side));
      RmsNorm(*stream_, second.y, norm, 1e-5f, 1, h);
      done();
      ops::Linear(*stream_, h, second.weight, nullptr, first.y, Epilogue::kAdd);
      done();
      if (i % 3 == 0) {
        LC_CUDA(cudaMemcpyAsync(spare, first.y.data, size * sizeof(float), cudaMemcpyDeviceToDevice,
                                handle));
        done();
      }
      LC_CUDA(cudaStreamWaitEvent(handle, joined, 0));
      Convert(*stream_, side_y, h);
      done();
      ops::Linear(*stream_, h, first.weight, nullptr, first.y, Epilogue::kAdd);
      done();
    }
  };
  layers(true);
  const std::vector<float> want = Download(first.y.Row<float>(0), size);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  layers(false);
  LC_CUDA(cudaStreamEndCapture(handle, &graph));
  LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 20; ++i) {
    LC_CUDA(cudaGraphLaunch(executable, handle));
    EXPECT_EQ(Download(first.y.Row<float>(0), size), want) << "replay " << i;
  }
  LC_CUDA(cudaGraphExecDestroy(executable));
  LC_CUDA(cudaGraphDestroy(graph));
  LC_CUDA(cudaEventDestroy(forked));
  LC_CUDA(cudaEventDestroy(joined));
}

TEST_F(LinearTest, SharingTheGpuChangesNoBit) {
  // Tiles that blocks claim instead of even shares, for more launches than there are counters; in a
  // graph whose kernels overlap, beside a stream that holds SMs now and then.
  const auto shared = gpu_->CreateStream();
  const auto beside = gpu_->CreateStream();
  ShareGpu(*shared);
  // Widths of 264 leave warps without a part of the depth, and blocks without a tile.
  uint64_t key = 0;
  for (const auto& [rows, hidden, wide] : {std::tuple<int64_t, int64_t, int64_t>{1, 1544, 4104},
                                           {2, 264, 4104},
                                           {5, 1544, 4104},
                                           {1, 4104, 264},
                                           {11, 1544, 4104}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} and {}", rows, hidden, wide));
    ++key;
    const Case up = Make(rows, wide, hidden, DType::kBF16, DType::kBF16, false, false, 0);
    const Case gate = Make(rows, wide, hidden, DType::kBF16, DType::kBF16, false, false, 0);
    const Case down = Make(rows, hidden, wide, DType::kBF16, DType::kF32, true, true, 0);
    const LinearPart to_up = Target(up), to_gate = Target(gate), to_down = Target(down);
    const MatrixView x = OnDevice(up.x), other = OnDevice(down.x);
    const MatrixView y_beside = OnDevice(down.y);
    const auto size = static_cast<size_t>(rows * hidden);
    const auto layers = [&](Stream& stream) {
      LC_CUDA(cudaMemsetAsync(to_down.y.data, 0, size * sizeof(float), AsCuda(stream).handle()));
      for (int i = 0; i < 16; ++i) {
        const LinearPart both[] = {to_gate, to_up};
        ops::Linear(stream, x, both);
        ops::GatedLinear(stream, x, to_gate, to_up);
        ops::Linear(stream, to_gate.y, to_down.weight, to_down.bias, to_down.y, Epilogue::kAdd);
      }
    };
    layers(*stream_);
    const std::vector<float> want = Download(to_down.y.Row<float>(0), size);
    for (int round = 0; round < testing::Rounds(12); ++round) {
      for (int i = 0; i < 40; ++i) {
        ops::Linear(*beside, other, to_down.weight, nullptr, y_beside);
      }
      AsCuda(*shared).Run(key, [&] { layers(*shared); });
      shared->Synchronize();
      EXPECT_EQ(Download(to_down.y.Row<float>(0), size), want) << "round " << round;
    }
    beside->Synchronize();
  }
}

TEST_F(LinearTest, SmsSetApartChangeNoBit) {
  std::string why_none;
  const SmSplit* const split = SmSplit::Get(gpu_->index(), 8, &why_none);
  if (split == nullptr) GTEST_SKIP() << why_none;
  EXPECT_EQ(split, SmSplit::Get(gpu_->index(), 8, &why_none));
  EXPECT_GE(split->few(), 8);
  EXPECT_EQ(split->few() + split->rest(), gpu_->sm_count());
  const std::shared_ptr<CudaStream> rest = split->StreamOfRest(/*first=*/false);
  CudaBranch branch(split->StreamOfFew(/*first=*/true), /*marks=*/1);
  EXPECT_EQ(AsCuda(branch.stream()).sm_count(), split->few());
  const Case some = Make(3, 4104, 1544, DType::kBF16, DType::kF32, true, true, 0);
  const Case other = Make(2, 1544, 4104, DType::kBF16, DType::kF32, true, true, 0);
  const LinearPart part = Target(some), other_part = Target(other);
  const MatrixView x = OnDevice(some.x), other_x = OnDevice(other.x);
  // y of both products, each added to what the one before has left; `apart`: the other one on the
  // few SMs and this one beside it on the rest, but for its last launch.
  const auto products = [&](Stream& stream, bool apart) {
    CudaStream& cuda = AsCuda(stream);
    for (const LinearPart& p : {part, other_part}) {
      LC_CUDA(cudaMemsetAsync(p.y.data, 0, static_cast<size_t>(p.y.rows * p.y.cols) * 4,
                              cuda.handle()));
    }
    if (apart) branch.Fork(stream);
    if (apart) cuda.Divert(rest);
    EXPECT_EQ(cuda.sm_count(), apart ? split->rest() : gpu_->sm_count());
    Stream& beside = apart ? branch.stream() : stream;
    for (int i = 0; i < 9; ++i) {
      if (i == 8 && apart) branch.JoinAll(stream);
      if (i == 8) cuda.Return();
      ops::Linear(stream, x, part.weight, part.bias, part.y, Epilogue::kAdd);
      if (i < 5) {
        ops::Linear(beside, other_x, other_part.weight, nullptr, other_part.y, Epilogue::kAdd);
      }
    }
  };
  const auto results = [&](Stream& stream) {
    stream.Synchronize();
    std::vector<float> y = Download(part.y.Row<float>(0), 3 * 4104);
    const std::vector<float> more = Download(other_part.y.Row<float>(0), 2 * 1544);
    y.insert(y.end(), more.begin(), more.end());
    return y;
  };
  products(*stream_, false);
  const std::vector<float> want = results(*stream_);
  // A stream whose blocks claim tiles, too.
  const auto shared = gpu_->CreateStream();
  ShareGpu(*shared);
  for (int step = 0; step < 8; ++step) {
    shared->Run(1, [&] { products(*shared, true); });
    EXPECT_EQ(results(*shared), want) << "shared, step " << step;
  }
  for (int step = 0; step < 8; ++step) {  // issued, recorded, replayed
    stream_->Run(1, [&] { products(*stream_, true); });
    EXPECT_EQ(results(*stream_), want) << "step " << step;
    EXPECT_FALSE(AsCuda(*stream_).diverted());
  }
  // A step that fails where it is recorded comes back, too.
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THROW(stream_->Run(2,
                              [&] {
                                AsCuda(*stream_).Divert(rest);
                                ops::Linear(*stream_, x, part.weight, part.bias, part.y);
                                throw std::runtime_error("a step that fails");
                              }),
                 std::runtime_error);
    EXPECT_FALSE(AsCuda(*stream_).diverted());
    stream_->Synchronize();
    products(*stream_, false);
    EXPECT_EQ(results(*stream_), want) << "after failure " << attempt;
  }
}

TEST_F(LinearTest, IsCapturedIntoAGraph) {
  PrepareLinear(*stream_);
  for (int64_t rows : {4, 48}) {
    SCOPED_TRACE(rows);
    Case c = Make(rows, 72, 136, DType::kBF16, DType::kF32, true, false, 0);
    const LinearPart target = Target(c);
    const MatrixView x = OnDevice(c.x);
    CUstream_st* const handle = AsCuda(*stream_).handle();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    LC_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
    ops::Linear(*stream_, x, target.weight, target.bias, target.y);
    LC_CUDA(cudaStreamEndCapture(handle, &graph));
    LC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    LC_CUDA(cudaGraphLaunch(executable, handle));
    LC_CUDA(cudaGraphLaunch(executable, handle));
    Compare(c, target.y);
    LC_CUDA(cudaGraphExecDestroy(executable));
    LC_CUDA(cudaGraphDestroy(graph));
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
