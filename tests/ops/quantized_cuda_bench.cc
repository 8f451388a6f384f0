// Products with packed blocks at Llama 3.1 8B's shapes: a decode step's few rows, and many.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/bench_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/quantized/packed_blocks.h"

namespace litecache::ops::cuda {
namespace {

constexpr int64_t kSeveralCaches = int64_t{512} << 20;

// Packed blocks whose integers are random and whose scales are small.
Buffer RandomBlocks(Bench& bench, const BlockFormat& format, int64_t rows, int64_t cols,
                    int64_t copies) {
  std::vector<std::byte> blocks(static_cast<size_t>(rows * cols / format.values * format.bytes));
  uint32_t state = 1;
  for (std::byte& byte : blocks) {
    state = state * 1664525 + 1013904223;
    // No exponent of an f16 is then that of infinity, wherever a format has its scales.
    byte = static_cast<std::byte>(state >> 24 & 0x3b);
  }
  const uint64_t bytes = PackedBytes(format, rows, cols);
  std::vector<std::byte> packed(bytes * static_cast<uint64_t>(copies));
  PackBlocks(MatrixView::OfBlocks(blocks.data(), format, rows, cols), packed.data());
  for (int64_t i = 1; i < copies; ++i) {
    std::copy_n(packed.data(), bytes, packed.data() + static_cast<uint64_t>(i) * bytes);
  }
  return bench.Upload(packed);
}

// `outs`: parts of one call; gated: two, of which one gates the other.
void BenchProduct(Bench& bench, std::string_view format_name, const std::string& what,
                  const std::vector<int64_t>& outs, int64_t in, int64_t rows, DType y_type,
                  bool gated = false) {
  int64_t out = 0;
  for (int64_t part : outs) out += part;
  const std::string name =
      fmt::format("quantized {} {} [{}, {}] x {} rows", format_name, what, out, in, rows);
  if (!bench.Wants(name)) return;
  const BlockFormat& format = *FindBlockFormat(format_name);
  const auto weight_bytes = static_cast<int64_t>(PackedBytes(format, out, in));
  const auto y_size = static_cast<int64_t>(SizeOf(y_type));
  const int64_t bytes = weight_bytes + rows * in * 2 + rows * out * y_size;
  const int64_t copies = std::clamp<int64_t>(kSeveralCaches / bytes, 4, 64);
  const Buffer weights = RandomBlocks(bench, format, out, in, copies);
  const Buffer x = bench.Random(static_cast<size_t>(rows * in * 2));
  const Buffer y = bench.Zeros(static_cast<size_t>(rows * out * y_size));
  bench.Run(name, static_cast<double>(bytes),
            2.0 * static_cast<double>(rows * out) * static_cast<double>(in),
            static_cast<int>(copies), [&](Stream& stream, int i) {
              std::vector<LinearPart> parts;
              int64_t first = 0;
              for (int64_t part : outs) {
                auto* weight =
                    weights.as<std::byte>() + i * weight_bytes + PackedBytes(format, first, in);
                auto* result = y.as<std::byte>() + rows * first * y_size;
                parts.push_back({.weight = MatrixView::OfBlocks(weight, format, part, in),
                                 .y = MatrixView::Of(result, y_type, rows, part)});
                first += part;
              }
              const MatrixView x_view = MatrixView::Of(x.data(), DType::kBF16, rows, in);
              if (gated) return ops::GatedLinear(stream, x_view, parts[0], parts[1]);
              ops::Linear(stream, x_view, parts);
            });
}

void BenchQuantized(Bench& bench) {
  for (const std::string_view format : {"Q4_K", "Q6_K", "Q8_0"}) {
    for (int64_t rows : {1, 2, 4, 8, 16, 24, 32, 48, 64, 65, 96, 128, 192, 193, 512}) {
      const auto run = [&](const std::string& what, const std::vector<int64_t>& outs, int64_t in,
                           DType y_type, bool gated = false) {
        BenchProduct(bench, format, what, outs, in, rows, y_type, gated);
      };
      run("o", {4096}, 4096, DType::kF32);
      run("gate+up", {14336, 14336}, 4096, DType::kBF16, /*gated=*/true);
      run("down", {4096}, 14336, DType::kF32);
      if (rows != 1 && rows != 16) continue;
      run("k", {1024}, 4096, DType::kF32);
      run("qkv", {4096, 1024, 1024}, 4096, DType::kF32);
      run("logits", {128256}, 4096, DType::kF32);
    }
  }
}

const BenchTopic kQuantized("quantized", BenchQuantized);

}  // namespace
}  // namespace litecache::ops::cuda
