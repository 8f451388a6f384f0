// Matrix products and the operations between them, at Llama-3-8B's shapes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/sm_split.h"
#include "ops/bench_cuda.h"
#include "ops/dense/activation.h"
#include "ops/dense/activation_cuda.h"
#include "ops/dense/norm.h"
#include "ops/dense/norm_cuda.h"
#include "ops/dense/rope.h"
#include "ops/dense/rope_cuda.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/sample/arg_max_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int64_t kSeveralCaches = int64_t{512} << 20;

// Number of runs whose memory together is several times the L2 cache, within limits.
int64_t Copies(int64_t bytes) {
  return std::clamp<int64_t>(kSeveralCaches / std::max<int64_t>(bytes, 1), 4, 64);
}

// The implementation of a product: chosen by ops::Linear, the plain GEMV, or cuBLASLt.
enum class Way { kChosen, kGemv, kLibrary };

// `outs`: parts of one product's launch, with `in` columns each.
void BenchLinear(Bench& bench, const std::string& what, const std::vector<int64_t>& outs,
                 int64_t in, int64_t rows, DType y_type, Way way = Way::kChosen) {
  int64_t out = 0;
  for (int64_t part : outs) out += part;
  const std::string name =
      fmt::format("linear {} [{}, {}] x {} rows -> {}{}", what, out, in, rows, Name(y_type),
                  way == Way::kLibrary ? ", cuBLASLt"
                  : way == Way::kGemv  ? ", plain GEMV"
                                       : "");
  if (!bench.Wants(name)) return;
  const int64_t weight_bytes = out * in * 2;
  const int64_t y_bytes = rows * out * static_cast<int64_t>(SizeOf(y_type));
  const int64_t bytes = weight_bytes + rows * in * 2 + y_bytes;
  const int64_t copies = Copies(bytes);
  const Buffer weights = bench.Random(static_cast<size_t>(copies * weight_bytes));
  const Buffer x = bench.Random(static_cast<size_t>(rows * in * 2));
  const Buffer y = bench.Zeros(static_cast<size_t>(y_bytes));
  Gemm library;
  bench.Run(name, static_cast<double>(bytes),
            2.0 * static_cast<double>(rows * out) * static_cast<double>(in),
            static_cast<int>(copies), [&](Stream& stream, int i) {
              std::vector<LinearPart> parts;
              int64_t first = 0;
              for (int64_t part : outs) {
                auto* weight = weights.as<char>() + i * weight_bytes + first * in * 2;
                auto* result = y.as<char>() + rows * first * static_cast<int64_t>(SizeOf(y_type));
                parts.push_back({.weight = MatrixView::Of(weight, DType::kBF16, part, in),
                                 .y = MatrixView::Of(result, y_type, rows, part)});
                first += part;
              }
              const MatrixView x_view = MatrixView::Of(x.data(), DType::kBF16, rows, in);
              if (way == Way::kChosen) return ops::Linear(stream, x_view, parts);
              if (way == Way::kGemv) return Gemv(stream, x_view, parts, Epilogue::kStore);
              for (const LinearPart& part : parts) {
                library.Run(AsCuda(stream), x_view, part.weight, {}, part.y, Epilogue::kStore);
              }
            });
}

// How a layer's products share the GPU with other streams' kernels: not at all, by claiming tiles
// (ShareGpu), while predicting a later layer's queries, and the latter on the SMs that a pull
// leaves free.
enum class Sharing { kNone, kShared, kPredicted, kApart };

// The work of a layer of Llama-3-8B without attention: norm, qkv, RoPE, o, norm, gate and up, down.
// It shows how close the layer is to the time of reading its weights, and, with
// LITECACHE_OVERLAP=0, the gain from kernels that start before the previous one has ended.
void BenchLayer(Bench& bench, int64_t rows, Sharing sharing) {
  constexpr const char* kNames[] = {"", ", shared", ", shared, queries predicted",
                                    ", shared, queries predicted, without 8 SMs"};
  const std::string name = fmt::format("linear layer without attention x {} rows{}", rows,
                                       kNames[static_cast<int>(sharing)]);
  if (!bench.Wants(name)) return;
  const bool predicts = sharing == Sharing::kPredicted || sharing == Sharing::kApart;
  std::shared_ptr<CudaStream> rest;
  if (sharing == Sharing::kApart) {
    std::string reason;
    const SmSplit* const split = SmSplit::Get(bench.gpu().index(), 8, &reason);
    if (split == nullptr) {
      fmt::print("{:<52} {}\n", name, reason);
      return;
    }
    rest = split->StreamOfRest(/*first=*/false);
  }
  constexpr int64_t kHidden = 4096, kKv = 1024, kWide = 14336;
  constexpr int64_t kQkvo = (2 * kHidden + 2 * kKv) * kHidden;
  constexpr int64_t kElements = kQkvo + 3 * kWide * kHidden;
  constexpr int kLayers = 8;
  const Buffer weights = bench.Random(kLayers * kElements * 2);
  const Buffer norm = bench.Random(kHidden * 4);
  const int64_t projected = predicts ? 2 * rows : rows;
  const auto floats = [&](int64_t n, int64_t cols) {
    return bench.Zeros(static_cast<size_t>(n * cols * 4));
  };
  const Buffer x = floats(rows, kHidden), h = floats(projected, kHidden),
               q = floats(projected, kHidden), next_q = floats(projected, kHidden),
               k = floats(projected, kKv), v = floats(projected, kKv), gate = floats(rows, kWide),
               up = floats(rows, kWide), rotations = floats(rows, 128);
  const auto f32 = [&](const Buffer& b, int64_t n, int64_t cols) {
    return MatrixView::Of(b.data(), DType::kF32, n, cols);
  };
  const auto bf16_rows = [&](const Buffer& b, int64_t n, int64_t cols) {
    return MatrixView::Of(b.data(), DType::kBF16, n, cols);
  };
  const int64_t read = kElements + (predicts ? kHidden * kHidden : 0);
  bench.Run(name, static_cast<double>(read) * 2, 0, kLayers, [&](Stream& stream, int i) {
    if (sharing != Sharing::kNone) ShareGpu(stream);
    if (rest != nullptr && i == 0) AsCuda(stream).Divert(rest);
    char* at = weights.as<char>() + i * kElements * 2;
    const auto take = [&](int64_t out, int64_t in) {
      const MatrixView weight = MatrixView::Of(at, DType::kBF16, out, in);
      at += out * in * 2;
      return weight;
    };
    const MatrixView x_rows = f32(x, rows, kHidden), input = bf16_rows(h, rows, kHidden);
    const auto norm_x = [&] { ops::RmsNorm(stream, x_rows, norm.as<float>(), 1e-5f, 1, input); };
    std::vector<LinearPart> parts = {
        {.weight = take(kHidden, kHidden), .y = f32(q, projected, kHidden)},
        {.weight = take(kKv, kHidden), .y = f32(k, projected, kKv)},
        {.weight = take(kKv, kHidden), .y = f32(v, projected, kKv)}};
    std::vector<ProjectedHeads> heads = {{.x = f32(q, rows, kHidden), .heads = 32},
                                         {.x = f32(k, rows, kKv), .heads = 8}};
    if (predicts) {
      char* const next = weights.as<char>() + (i + 1) % kLayers * kElements * 2;
      parts.push_back({.weight = MatrixView::Of(next, DType::kBF16, kHidden, kHidden),
                       .y = f32(next_q, projected, kHidden)});
      heads.insert(heads.begin(), {.x = f32(next_q, rows, kHidden), .heads = 32});
      ops::RmsNormTwice(stream, x_rows, norm.as<float>(), norm.as<float>(), 1e-5f,
                        bf16_rows(h, projected, kHidden));
    } else {
      norm_x();
    }
    ops::Linear(stream, bf16_rows(h, projected, kHidden), parts);
    ops::RotateHeads(stream, heads, 1e-5f, f32(rotations, rows, 128));
    ops::Linear(stream, input, take(kHidden, kHidden), nullptr, x_rows, Epilogue::kAdd);
    norm_x();
    const MatrixView gate_rows = bf16_rows(gate, rows, kWide);
    const LinearPart gate_part = {.weight = take(kWide, kHidden), .y = gate_rows};
    const LinearPart up_part = {.weight = take(kWide, kHidden), .y = bf16_rows(up, rows, kWide)};
    ops::GatedLinear(stream, input, gate_part, up_part);
    ops::Linear(stream, gate_rows, take(kHidden, kWide), nullptr, x_rows, Epilogue::kAdd);
  });
}

// Element-wise operations on [rows, cols] activations, each measured separately.
void BenchElementwise(Bench& bench, int64_t rows) {
  const auto f32_bytes = [&](int64_t cols) { return rows * cols * 4; };
  const auto run = [&](const std::string& what, int64_t bytes, int64_t reads_a_run,
                       const auto& body) {
    const std::string name = fmt::format("{} x {} rows", what, rows);
    if (!bench.Wants(name)) return;
    const int64_t copies = Copies(reads_a_run);
    const Buffer memory = bench.Random(static_cast<size_t>(copies * reads_a_run));
    bench.Run(name, static_cast<double>(bytes), 0, static_cast<int>(copies),
              [&](Stream& stream, int i) { body(stream, memory.as<char>() + i * reads_a_run); });
  };
  const Buffer weight = bench.Random(4096 * 4);
  const Buffer out = bench.Zeros(static_cast<size_t>(f32_bytes(14336)));
  run("rms norm 4096 -> bf16", f32_bytes(4096) / 2 * 3, f32_bytes(4096),
      [&](Stream& stream, char* x) {
        ops::RmsNorm(stream, MatrixView::Of(x, DType::kF32, rows, 4096), weight.as<float>(), 1e-5f,
                     1, MatrixView::Of(out.data(), DType::kBF16, rows, 4096));
      });
  run("silu 14336 bf16", rows * 14336 * 6, rows * 14336 * 4, [&](Stream& stream, char* x) {
    const MatrixView both = MatrixView::Of(x, DType::kBF16, 2 * rows, 14336);
    ops::GateMul(stream, both.Rows(0, rows), both.Rows(rows, rows),
                 MatrixView::Of(out.data(), DType::kBF16, rows, 14336));
  });
  const Buffer rotations = bench.Random(static_cast<size_t>(f32_bytes(128)));
  run("rope 32 heads of 128", f32_bytes(4096) * 2, f32_bytes(4096), [&](Stream& stream, char* x) {
    ops::Rope(stream, MatrixView::Of(x, DType::kF32, rows, 4096),
              MatrixView::Of(rotations.as<float>(), rows, 128), 32);
  });
}

void BenchDense(Bench& bench) {
  for (int64_t rows : {1, 2, 4, 8, 16}) {
    const auto all = [&](const std::string& what, const std::vector<int64_t>& outs, int64_t in,
                         DType y_type) {
      BenchLinear(bench, what, outs, in, rows, y_type);
      BenchLinear(bench, what, outs, in, rows, y_type, Way::kGemv);
      BenchLinear(bench, what, outs, in, rows, y_type, Way::kLibrary);
    };
    all("o", {4096}, 4096, DType::kF32);
    all("k", {1024}, 4096, DType::kF32);
    all("qkv", {4096, 1024, 1024}, 4096, DType::kF32);
    all("up", {14336}, 4096, DType::kBF16);
    all("gate+up", {14336, 14336}, 4096, DType::kBF16);
    all("down", {4096}, 14336, DType::kF32);
    all("logits", {128256}, 4096, DType::kF32);
  }
  // 17 is the first number of rows for which cuBLASLt is used.
  for (int64_t rows : {17, 32, 512, 2048, 8192}) {
    BenchLinear(bench, "o", {4096}, 4096, rows, DType::kF32);
    BenchLinear(bench, "up", {14336}, 4096, rows, DType::kBF16);
    BenchLinear(bench, "down", {4096}, 14336, rows, DType::kF32);
  }
  for (int64_t rows : {1, 4, 16}) BenchLayer(bench, rows, Sharing::kNone);
  for (const Sharing sharing : {Sharing::kShared, Sharing::kPredicted, Sharing::kApart}) {
    BenchLayer(bench, 1, sharing);
  }
  for (int64_t rows : {1, 16, 2048}) BenchElementwise(bench, rows);
  for (int64_t rows : {1, 8, 64}) {
    const std::string name = fmt::format("arg max of 128256 x {} rows", rows);
    if (!bench.Wants(name)) continue;
    const int64_t bytes = rows * 128256 * 4;
    const int64_t copies = Copies(bytes);
    const Buffer logits = bench.Random(static_cast<size_t>(copies * bytes));
    const Buffer ids = bench.Zeros(static_cast<size_t>(rows) * 8);
    bench.Run(
        name, static_cast<double>(bytes), 0, static_cast<int>(copies), [&](Stream& stream, int i) {
          ArgMax(stream, MatrixView::Of(logits.as<char>() + i * bytes, DType::kF32, rows, 128256),
                 ids.as<int32_t>(), ids.as<int32_t>() + rows);
        });
  }
}

const BenchTopic kDense("dense", BenchDense);

}  // namespace
}  // namespace litecache::ops::cuda
