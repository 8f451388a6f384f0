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
// Outputs in a piece of work with many rows of x: x is read from the L3 cache once for all of them,
// which made products of 512 rows 1.3 times as fast with 128 as with 32. Fewer if that leaves
// threads without work.
constexpr int64_t kMostTileOutputs = 128, kLeastTileOutputs = 32;
// Sums of a piece's rows for one row of x that are stored together.
constexpr int64_t kSums = 64;
int64_t RoundedUpQuotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

const QuantizedKernels* ActiveQuantizedKernels() {
#if defined(__x86_64__)
  if (ActiveCpuIsa() >= CpuIsa::kAvx512Bf16) return &kAvx512VnniQuantizedKernels;
  if (ActiveCpuIsa() >= CpuIsa::kAvx2) return &kAvx2QuantizedKernels;
#endif
  return nullptr;
}

// Bytes of x's levels and their factors, for a row of `depth` values.
int64_t RowBytes(int64_t depth) { return RoundedUpQuotient(depth, kSliceValues) * PanelBytes(1); }
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

QuantizedRows RoundRows(const QuantizedKernels& kernels, const MatrixView& x) {
  const int64_t slices = RoundedUpQuotient(x.cols, kSliceValues);
  // Quads of up to kMaxQuantizedTokens rows take less than the other rows of a panel.
  const auto quad_bytes = x.rows * slices * kSliceQuads * static_cast<int64_t>(sizeof(int32_t));
  const auto size = static_cast<size_t>(x.rows * RowBytes(x.cols) + quad_bytes);
  auto* data = XScratch().Reserve<std::byte>(size);
  std::memset(data, 0, size);
  auto* quads = reinterpret_cast<int32_t*>(data);
  auto* levels = reinterpret_cast<int16_t*>(data + quad_bytes);
  auto* factors = reinterpret_cast<SliceFactors*>(levels + x.rows * slices * kSliceValues);
  for (int64_t i = 0; i < x.rows * slices; ++i) {
    const int64_t k = i % slices * kSliceValues;
    QuantizeX(x.Row<float>(i / slices) + k, std::min(kSliceValues, x.cols - k),
              levels + i * kSliceValues, factors + i);
    if (kernels.arrange != nullptr) {
      kernels.arrange(levels + i * kSliceValues, quads + i * kSliceQuads);
    }
  }
  return {levels, quads, factors, slices};
}

void FewRows(ThreadPool& pool, const QuantizedKernels& kernels, const MatrixView& x,
             std::span<const LinearPart> parts, Epilogue epilogue) {
  const QuantizedRows rounded = RoundRows(kernels, x);
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
                      .tokens = x.rows,
                      .sums = sums,
                      .sums_stride = kSums});
        for (int64_t t = 0; t < x.rows; ++t) {
          Store(part, t, n0, n, sums + t * kSums, 1, epilogue);
        }
      }
      begin -= part.weight.rows;
      end -= part.weight.rows;
    }
  });
}

// Outputs and slices of the depth whose weights are unpacked at one time. For a few panels of x
// several rows of weights, read from one end to the other as they come from memory; for many panels
// a slice of all outputs of a tile, which stays in the L2 cache while all panels read it.
struct UnpackedShape {
  int64_t outputs, slices;
};
UnpackedShape UnpackedFor(int64_t panels) {
  constexpr int64_t kFewPanels = 2;
  return panels <= kFewPanels ? UnpackedShape{8, 12} : UnpackedShape{kMostTileOutputs, 1};
}

// Packs slice `slice` of rows [first, first + rows) of x, at most `lanes`.
void PackSlice(const MatrixView& x, int64_t first, int64_t rows, int64_t lanes, int64_t slice,
               std::byte* out) {
  const int64_t begin = slice * kSliceValues;
  const int64_t values = std::min(kSliceValues, x.cols - begin);
  std::memset(out, 0, static_cast<size_t>(PanelBytes(lanes)));
  for (int64_t lane = 0; lane < rows; ++lane) {
    // In the order of a panel.
    struct {
      int16_t levels[kSliceValues] = {};
      SliceFactors factors;
    } packed;
    static_assert(sizeof(packed) == PanelBytes(1));
    QuantizeX(x.Row<float>(first + lane) + begin, values, packed.levels, &packed.factors);
    const auto* from = reinterpret_cast<const std::byte*>(&packed);
    for (int64_t i = 0; i < kSlicePairs + kSliceFloats; ++i) {
      std::memcpy(out + (i * lanes + lane) * 4, from + i * 4, 4);
    }
  }
}

struct Panels {
  const std::byte* data;
  int64_t first, rows;  // of x
  int64_t count;
};

// Outputs [begin, begin + outputs) of one part for the packed rows.
void MultiplyTile(const QuantizedKernels& kernels, const LinearPart& part, const Panels& panels,
                  int64_t begin, int64_t outputs, Epilogue epilogue) {
  static thread_local Scratch sums_scratch, unpacked_scratch;
  const MatrixView& weight = part.weight;
  const int64_t lanes = kernels.lanes, end = begin + outputs;
  const UnpackedShape shape = UnpackedFor(panels.count);
  const int64_t step = shape.slices * kSliceValues, slice_stride = panels.count * PanelBytes(lanes);
  auto* sums =
      sums_scratch.Reserve<float>(static_cast<size_t>(panels.count * kMostTileOutputs * lanes));
  auto* unpacked =
      unpacked_scratch.Reserve<UnpackedSlice>(static_cast<size_t>(shape.outputs * shape.slices));
  for (int64_t n0 = begin; n0 < end; n0 += shape.outputs) {
    const int64_t n = std::min(shape.outputs, end - n0);
    const std::byte* rows = WeightRow(weight, n0);
    for (int64_t k0 = 0; k0 < weight.cols; k0 += step) {
      kernels.gemm({.format = weight.format,
                    .weight = rows + k0 / weight.format->values * weight.format->bytes,
                    .row_bytes = weight.RowBytes(),
                    .count = n,
                    .depth = std::min(step, weight.cols - k0),
                    .panels = panels.data + k0 / kSliceValues * slice_stride,
                    .slice_stride = slice_stride,
                    .panel_count = panels.count,
                    .accumulate = k0 > 0,
                    .unpacked = unpacked,
                    .sums = sums});
    }
    for (int64_t t = 0; t < panels.rows; ++t) {
      Store(part, panels.first + t, n0, n, sums + t / lanes * n * lanes + t % lanes, lanes,
            epilogue);
    }
  }
}

void ManyRows(ThreadPool& pool, const QuantizedKernels& kernels, const MatrixView& x,
              std::span<const LinearPart> parts, Epilogue epilogue) {
  const int64_t lanes = kernels.lanes, slices = RoundedUpQuotient(x.cols, kSliceValues);
  int64_t all_outputs = 0, tiles = 0;
  for (const LinearPart& part : parts) all_outputs += part.weight.rows;
  const int64_t tile_outputs =
      all_outputs < 4 * pool.size() * kMostTileOutputs ? kLeastTileOutputs : kMostTileOutputs;
  for (const LinearPart& part : parts) tiles += RoundedUpQuotient(part.weight.rows, tile_outputs);
  for (int64_t first = 0; first < x.rows; first += kMostPacked) {
    const int64_t rows = std::min(kMostPacked, x.rows - first),
                  count = RoundedUpQuotient(rows, lanes);
    auto* data =
        XScratch().Reserve<std::byte>(static_cast<size_t>(slices * count * PanelBytes(lanes)));
    pool.ParallelFor(count * slices, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % count * lanes;
        PackSlice(x, first + row, std::min(lanes, rows - row), lanes, i / count,
                  data + i * PanelBytes(lanes));
      }
    });
    const Panels panels{data, first, rows, count};
    pool.ParallelFor(tiles, 1, [&](int64_t begin, int64_t end, int) {
      for (const LinearPart& part : parts) {
        const int64_t outputs = part.weight.rows,
                      part_tiles = RoundedUpQuotient(outputs, tile_outputs);
        for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, part_tiles); ++i) {
          const int64_t n0 = i * tile_outputs;
          MultiplyTile(kernels, part, panels, n0, std::min(tile_outputs, outputs - n0), epilogue);
        }
        begin -= part_tiles;
        end -= part_tiles;
      }
    });
  }
}

}  // namespace

bool HasQuantizedKernels() { return ActiveQuantizedKernels() != nullptr; }

int64_t MaxQuantizedGemvTokens() { return kMaxQuantizedTokens; }

void QuantizedLinear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
                     Epilogue epilogue) {
  const QuantizedKernels* kernels = ActiveQuantizedKernels();
  LC_CHECK(kernels != nullptr);
  if (x.rows <= kMaxQuantizedTokens) {
    FewRows(pool, *kernels, x, parts, epilogue);
  } else {
    ManyRows(pool, *kernels, x, parts, epilogue);
  }
}

uint64_t QuantizedScratchBytes(int64_t rows, int64_t depth, int threads) {
  const QuantizedKernels* kernels = ActiveQuantizedKernels();
  if (kernels == nullptr) return 0;
  const int64_t lanes = kernels->lanes;
  const int64_t packed = RoundedUpQuotient(std::min(rows, kMostPacked), lanes) * lanes;
  int64_t unpacked = 0;
  for (const UnpackedShape& shape : {UnpackedFor(1), UnpackedFor(packed)}) {
    unpacked = std::max(unpacked, shape.outputs * shape.slices * int64_t{sizeof(UnpackedSlice)});
  }
  const int64_t tile = kMostTileOutputs * packed * static_cast<int64_t>(sizeof(float)) + unpacked;
  return static_cast<uint64_t>(packed * RowBytes(depth) + threads * tile);
}

}  // namespace litecache::ops::cpu
