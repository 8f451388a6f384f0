// Matrix products and what stands between them, at Llama-3-8B's shapes.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/activation.h"
#include "ops/cuda/bench.h"
#include "ops/cuda/dense.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace litecache::ops::cuda {
namespace {

constexpr int64_t kSeveralCaches = int64_t{512} << 20;

// Runs whose memory together is several times the L2 cache, and not too many.
int64_t Copies(int64_t bytes) {
  return std::clamp<int64_t>(kSeveralCaches / std::max<int64_t>(bytes, 1), 4, 64);
}

// `outs`: parts of one product's launch, of `in` columns each.
void BenchLinear(Bench& bench, const std::string& what, const std::vector<int64_t>& outs,
                 int64_t in, int64_t rows, DType y_type) {
  int64_t out = 0;
  for (int64_t part : outs) out += part;
  const std::string name =
      fmt::format("linear {} [{}, {}] x {} rows -> {}", what, out, in, rows, Name(y_type));
  if (!bench.Wants(name)) return;
  const int64_t weight_bytes = out * in * 2;
  const int64_t y_bytes = rows * out * static_cast<int64_t>(SizeOf(y_type));
  const int64_t bytes = weight_bytes + rows * in * 2 + y_bytes;
  const int64_t copies = Copies(bytes);
  const Buffer weights = bench.Random(static_cast<size_t>(copies * weight_bytes));
  const Buffer x = bench.Random(static_cast<size_t>(rows * in * 2));
  const Buffer y = bench.Zeros(static_cast<size_t>(y_bytes));
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
              ops::Linear(stream, MatrixView::Of(x.data(), DType::kBF16, rows, in), parts);
            });
}

// Element-wise operations on [rows, cols] activations, each run on its own.
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
    ops::SiluMul(stream, both.Rows(0, rows), both.Rows(rows, rows),
                 MatrixView::Of(out.data(), DType::kBF16, rows, 14336));
  });
  const Buffer rotations = bench.Random(static_cast<size_t>(f32_bytes(128)));
  run("rope 32 heads of 128", f32_bytes(4096) * 2, f32_bytes(4096), [&](Stream& stream, char* x) {
    ops::Rope(stream, MatrixView::Of(x, DType::kF32, rows, 4096),
              MatrixView::Of(rotations.as<float>(), rows, 128), 32);
  });
}

}  // namespace

void BenchDense(Bench& bench) {
  for (int64_t rows : {1, 2, 4, 8, 16}) {
    BenchLinear(bench, "o", {4096}, 4096, rows, DType::kF32);
    BenchLinear(bench, "k", {1024}, 4096, rows, DType::kF32);
    BenchLinear(bench, "qkv", {4096, 1024, 1024}, 4096, rows, DType::kF32);
    BenchLinear(bench, "up", {14336}, 4096, rows, DType::kBF16);
    BenchLinear(bench, "gate+up", {14336, 14336}, 4096, rows, DType::kBF16);
    BenchLinear(bench, "down", {4096}, 14336, rows, DType::kF32);
    BenchLinear(bench, "logits", {128256}, 4096, rows, DType::kF32);
  }
  // 17 is the first that cuBLASLt takes.
  for (int64_t rows : {17, 32, 512, 2048, 8192}) {
    BenchLinear(bench, "o", {4096}, 4096, rows, DType::kF32);
    BenchLinear(bench, "up", {14336}, 4096, rows, DType::kBF16);
    BenchLinear(bench, "down", {4096}, 14336, rows, DType::kF32);
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

}  // namespace litecache::ops::cuda
