#include "ops/linear/quantized/linear_cpu.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/cpu/cpu_isa.h"
#include "ops/common/scratch.h"
#include "ops/linear/quantized/kernels_cpu.h"
#include "ops/linear/quantized/quantize_x_cpu.h"

namespace litecache::ops::cpu {

void UnknownBlocks(const BlockFormat& format) {
  LC_CHECK(false, "no product with weights in {}", format.name);
  __builtin_unreachable();
}

namespace {

// Rows of x that are packed at one time, which bounds the scratch; the sums of a tile's outputs for
// them stay in the L2 cache.
constexpr int64_t kMostPacked = 512;
// Outputs in a piece of work with many rows of x.
constexpr int64_t kTileOutputs = 32;
// Bytes of two panels that stay in the L1 cache while all outputs of a tile read them.
constexpr int64_t kPanelPairBytes = 24 << 10;
// Sums of a piece's rows for one row of x that are stored together.
constexpr int64_t kSums = 64;
// Terms of x. With one term, SmolLM2's logits (Q4_1) have a divergence (KL) of 0.0035 from those of
// f32 products with the same weights, more than the sparse cache's; with two, 0.00004. Products of
// few rows wait for memory and take little longer for it, those of many rows twice as long: as long
// as with bf16 weights.
constexpr int64_t kTerms = 2;
constexpr int64_t kMostFewRows = kMaxQuantizedTokens / kTerms;

int64_t RoundedUpQuotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

const QuantizedKernels* ActiveQuantizedKernels() {
#if defined(__x86_64__)
  if (ActiveCpuIsa() >= CpuIsa::kAvx512Bf16) return &kAvx512VnniQuantizedKernels;
  if (ActiveCpuIsa() >= CpuIsa::kAvx2) return &kAvx2QuantizedKernels;
#endif
  return nullptr;
}

// Bytes of x's levels, scales, sums and sums of halves, for a row of `depth` values.
int64_t RowBytes(int64_t depth) {
  return RoundedUpQuotient(depth, kSliceValues) * QuantizedPanel::Bytes(1);
}
Scratch& XScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// y (= or +=) sums + bias, of outputs [n0, n0 + n) of one row.
void Store(const LinearPart& part, int64_t row, int64_t n0, int64_t n, const float* sums,
           int64_t step, Epilogue epilogue) {
  float* out = part.y.Row<float>(row) + n0;
  for (int64_t i = 0; i < n; ++i) {
    const float sum = sums[i * step] + (part.bias != nullptr ? part.bias[n0 + i] : 0.0f);
    out[i] = epilogue == Epilogue::kAdd ? out[i] + sum : sum;
  }
}

const std::byte* WeightRow(const MatrixView& weight, int64_t row) {
  return static_cast<const std::byte*>(weight.data) + row * weight.RowBytes();
}

// What levels and scales leave of n values.
const float* Remainder(const float* values, int64_t n, const int8_t* levels, const float* scales,
                       float* rest) {
  for (int64_t i = 0; i < n; ++i) {
    rest[i] = values[i] - scales[i / kUnitValues] * static_cast<float>(levels[i]);
  }
  return rest;
}

// Two terms for each row of x: its values in 8 bits, and what that leaves in 8 bits more.
QuantizedRows RoundRows(const MatrixView& x) {
  const int64_t stride = RoundedUpQuotient(x.cols, kSliceValues) * kSliceValues,
                units = stride / kUnitValues, rows = kTerms * x.rows;
  const auto size = static_cast<size_t>(rows * RowBytes(x.cols));
  auto* data = XScratch().Reserve<std::byte>(size);
  std::memset(data, 0, size);
  auto* levels = reinterpret_cast<int8_t*>(data);
  auto* scales = reinterpret_cast<float*>(levels + rows * stride);
  float *sums = scales + rows * units, *halves = sums + rows * units;
  float rest[kSliceValues];
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t k = 0; k < x.cols; k += kSliceValues) {
      const int64_t n = std::min(kSliceValues, x.cols - k), unit = k / kUnitValues;
      const float* values = x.Row<float>(t) + k;
      for (int64_t term = kTerms * t; term < kTerms * (t + 1); ++term) {
        int8_t* l = levels + term * stride + k;
        float* s = scales + term * units + unit;
        QuantizeX(values, n, l, s, sums + term * units + unit, halves + 2 * (term * units + unit));
        values = Remainder(values, n, l, s, rest);
      }
    }
  }
  return {levels, scales, sums, halves, stride};
}

void FewRows(ThreadPool& pool, const QuantizedKernels& kernels, const MatrixView& x,
             std::span<const LinearPart> parts, Epilogue epilogue) {
  const QuantizedRows rounded = RoundRows(x);
  int64_t outputs = 0, bytes = 0;
  for (const LinearPart& part : parts) {
    outputs += part.weight.rows;
    bytes += part.weight.rows * part.weight.RowBytes();
  }
  // Pieces of about 32 KiB, at least 8 KiB, and equally many for every thread.
  constexpr int64_t kLeastBytes = 8 << 10, kMostBytes = 32 << 10;
  const int64_t threads = pool.size();
  int64_t pieces = std::max(bytes / kMostBytes, std::min(4 * threads, bytes / kLeastBytes));
  if (pieces > threads) pieces = pieces / threads * threads;
  const int64_t grain = RoundedUpQuotient(outputs, std::max<int64_t>(pieces, 1));
  pool.ParallelFor(outputs, grain, [&](int64_t begin, int64_t end, int) {
    float sums[kSums * kMaxQuantizedTokens];
    for (const LinearPart& part : parts) {
      const int64_t last = std::min(end, part.weight.rows);
      for (int64_t n0 = std::max<int64_t>(begin, 0); n0 < last; n0 += kSums) {
        const int64_t n = std::min(kSums, last - n0);
        kernels.gemv({.format = part.weight.format,
                      .weight = WeightRow(part.weight, n0),
                      .row_bytes = part.weight.RowBytes(),
                      .count = n,
                      .depth = part.weight.cols,
                      .x = rounded,
                      .tokens = kTerms * x.rows,
                      .sums = sums,
                      .sums_stride = kSums});
        for (int64_t t = 0; t < x.rows; ++t) {
          float* sum = sums + kTerms * t * kSums;
          for (int64_t i = 0; i < n; ++i) sum[i] += sum[kSums + i];
          Store(part, t, n0, n, sum, 1, epilogue);
        }
      }
      begin -= part.weight.rows;
      end -= part.weight.rows;
    }
  });
}

// Outputs and slices of the depth whose weights are unpacked at one time. For a few panels of x
// several rows of weights, read from one end to the other as they come from memory; for many panels
// as much of the depth as the L1 cache holds of two panels, which all outputs of a tile read.
struct Unpacked {
  int64_t outputs, slices;
};
Unpacked UnpackedFor(int64_t panels, int64_t lanes) {
  constexpr int64_t kFewPanels = 2, kFewOutputs = 4, kFewSlices = 12;
  if (panels <= kFewPanels) return {kFewOutputs, kFewSlices};
  return {kTileOutputs, std::max<int64_t>(kPanelPairBytes / 2 / QuantizedPanel::Bytes(lanes), 1)};
}
int64_t UnpackedBytes(const Unpacked& unpacked) {
  return unpacked.outputs * unpacked.slices * kUnpackedBytes;
}

// Packs slice `slice` of rows [first, first + rows) of x, at most lanes / 2: their first terms into
// the first half of the lanes, their second terms into the other.
void PackSlice(const MatrixView& x, int64_t first, int64_t rows, int64_t lanes, int64_t slice,
               std::byte* out) {
  constexpr int64_t kSteps = kSliceValues / 4;
  const int64_t begin = slice * kSliceValues;
  const int64_t values = std::min(kSliceValues, x.cols - begin);
  std::memset(out, 0, static_cast<size_t>(QuantizedPanel::Bytes(lanes)));
  auto* floats = reinterpret_cast<float*>(out + kSliceValues * lanes);
  float rest[kSliceValues];
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.Row<float>(first + row) + begin;
    for (int64_t lane = row; lane < lanes; lane += lanes / kTerms) {
      int8_t levels[kSliceValues] = {};
      // Scales, sums, sums of halves: the order of a panel.
      float of_units[4 * kSliceUnits] = {};
      QuantizeX(from, values, levels, of_units, of_units + kSliceUnits, of_units + 2 * kSliceUnits);
      for (int64_t i = 0; i < kSteps; ++i) {
        std::memcpy(out + (i * lanes + lane) * 4, levels + i * 4, 4);
      }
      for (int64_t i = 0; i < 4 * kSliceUnits; ++i) floats[i * lanes + lane] = of_units[i];
      from = Remainder(from, values, levels, of_units, rest);
    }
  }
}

struct Panels {
  const std::byte* data;
  int64_t first, rows;  // of x
  int64_t count, stride;
};

// Outputs [begin, begin + outputs) of one part for the packed rows.
void MultiplyTile(const QuantizedKernels& kernels, const LinearPart& part, const Panels& panels,
                  int64_t begin, int64_t outputs, Epilogue epilogue) {
  static thread_local Scratch sums_scratch, unpacked_scratch;
  const MatrixView& weight = part.weight;
  const int64_t lanes = kernels.lanes, end = begin + outputs;
  const Unpacked shape = UnpackedFor(panels.count, lanes);
  const int64_t step = shape.slices * kSliceValues;
  auto* sums =
      sums_scratch.Reserve<float>(static_cast<size_t>(panels.count * kTileOutputs * lanes));
  auto* unpacked = unpacked_scratch.Reserve<std::byte>(static_cast<size_t>(UnpackedBytes(shape)));
  for (int64_t n0 = begin; n0 < end; n0 += shape.outputs) {
    const int64_t n = std::min(shape.outputs, end - n0);
    const std::byte* rows = WeightRow(weight, n0);
    for (int64_t k0 = 0; k0 < weight.cols; k0 += step) {
      kernels.gemm({.format = weight.format,
                    .weight = rows + k0 / weight.format->values * weight.format->bytes,
                    .row_bytes = weight.RowBytes(),
                    .count = n,
                    .depth = std::min(step, weight.cols - k0),
                    .panels = panels.data + k0 / kSliceValues * QuantizedPanel::Bytes(lanes),
                    .panel_stride = panels.stride,
                    .panel_count = panels.count,
                    .accumulate = k0 > 0,
                    .unpacked = unpacked,
                    .sums = sums});
    }
    const int64_t panel_rows = lanes / kTerms;
    for (int64_t t = 0; t < panels.rows; ++t) {
      float* sum = sums + t / panel_rows * n * lanes + t % panel_rows;
      for (int64_t i = 0; i < n * lanes; i += lanes) sum[i] += sum[i + panel_rows];
      Store(part, panels.first + t, n0, n, sum, lanes, epilogue);
    }
  }
}

void ManyRows(ThreadPool& pool, const QuantizedKernels& kernels, const MatrixView& x,
              std::span<const LinearPart> parts, Epilogue epilogue) {
  const int64_t lanes = kernels.lanes, slices = RoundedUpQuotient(x.cols, kSliceValues);
  const int64_t slice_bytes = QuantizedPanel::Bytes(lanes), panel_rows = lanes / kTerms;
  int64_t tiles = 0;
  for (const LinearPart& part : parts) tiles += RoundedUpQuotient(part.weight.rows, kTileOutputs);
  for (int64_t first = 0; first < x.rows; first += kMostPacked) {
    const int64_t rows = std::min(kMostPacked, x.rows - first),
                  count = RoundedUpQuotient(rows, panel_rows);
    auto* data = XScratch().Reserve<std::byte>(static_cast<size_t>(count * slices * slice_bytes));
    pool.ParallelFor(count * slices, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / slices * panel_rows;
        PackSlice(x, first + row, std::min(panel_rows, rows - row), lanes, i % slices,
                  data + i * slice_bytes);
      }
    });
    const Panels panels{data, first, rows, count, slices * slice_bytes};
    pool.ParallelFor(tiles, 1, [&](int64_t begin, int64_t end, int) {
      for (const LinearPart& part : parts) {
        const int64_t outputs = part.weight.rows,
                      part_tiles = RoundedUpQuotient(outputs, kTileOutputs);
        for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, part_tiles); ++i) {
          const int64_t n0 = i * kTileOutputs;
          MultiplyTile(kernels, part, panels, n0, std::min(kTileOutputs, outputs - n0), epilogue);
        }
        begin -= part_tiles;
        end -= part_tiles;
      }
    });
  }
}

}  // namespace

bool HasQuantizedKernels() { return ActiveQuantizedKernels() != nullptr; }

int64_t MaxQuantizedGemvTokens() { return kMostFewRows; }

void QuantizedLinear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
                     Epilogue epilogue) {
  const QuantizedKernels* kernels = ActiveQuantizedKernels();
  LC_CHECK(kernels != nullptr);
  if (x.rows <= kMostFewRows) {
    FewRows(pool, *kernels, x, parts, epilogue);
  } else {
    ManyRows(pool, *kernels, x, parts, epilogue);
  }
}

uint64_t QuantizedScratchBytes(int64_t rows, int64_t depth, int threads) {
  const QuantizedKernels* kernels = ActiveQuantizedKernels();
  if (kernels == nullptr) return 0;
  const int64_t lanes = kernels->lanes;
  const int64_t packed = RoundedUpQuotient(kTerms * std::min(rows, kMostPacked), lanes) * lanes;
  const int64_t unpacked =
      std::max(UnpackedBytes(UnpackedFor(1, lanes)), UnpackedBytes(UnpackedFor(3, lanes)));
  const int64_t tile = kTileOutputs * packed * static_cast<int64_t>(sizeof(float)) + unpacked;
  return static_cast<uint64_t>(packed * RowBytes(depth) + threads * tile);
}

}  // namespace litecache::ops::cpu
