#include "ops/linear/gemm_cpu.h"

#include <algorithm>

#include "ops/common/gemm_kernel_cpu.h"
#include "ops/common/scratch.h"
#include "ops/common/widen.h"

namespace litecache::ops::cpu {
namespace {

// Tokens whose packed panels exist at one time, which bounds the scratch (kTokenBlock * in * 4
// bytes at most). Every block reads the weights from memory again, which costs a few percent of the
// time for 1024 tokens.
constexpr int64_t kTokenBlock = 1024;
// Tokens whose sums stay in the L2 cache (kTokenTile * kWeightRows * 4 bytes) while the depth is
// processed.
constexpr int64_t kTokenTile = 256;
constexpr int64_t kWeightRows = 96;
// Bytes of a part of a panel that stays in the L1 cache.
constexpr int64_t kPanelBytes = 32 << 10;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens whose sums a thread keeps.
int64_t TileTokens(int64_t width) { return std::max(kTokenTile / width, int64_t{1}) * width; }
// Elements of the depth in one pass, for a panel that is `width` tokens wide: whole blocks of the
// weights' format, which have at most kMostValues values.
constexpr int64_t kMostValues = 256;
int64_t DepthBlock(const GemmKernel& kernel, int64_t width, int64_t values) {
  const int64_t elements = kPanelBytes / 4 / width * kernel.step;
  return std::max(elements / values * values, values);
}

struct Product {
  const GemmKernel& kernel;
  const MatrixView& x;
  const MatrixView& weight;
  const float* bias;
  const MatrixView& y;
  Epilogue epilogue;
  bool widen;           // weights are converted to f32 blocks first
  int64_t depth_block;  // elements of the depth in a pass
  std::byte* panels;    // [panel][steps][width], 32-bit lanes

  int64_t depth() const { return weight.cols; }
  int64_t PanelBytes() const { return kernel.Steps(depth()) * kernel.max_width() * 4; }
  int64_t VectorsOf(int64_t rows) const {
    return std::min(CeilDiv(rows, kernel.lanes), kernel.max_vectors);
  }
};

// Packs depth block `block` of panel `panel` of the tokens [first, first + rows).
void PackPiece(const Product& p, int64_t first, int64_t rows, int64_t panel, int64_t block) {
  const int64_t row = panel * p.kernel.max_width();
  const int64_t panel_rows = std::min(rows - row, p.kernel.max_width());
  const int64_t vectors = p.VectorsOf(panel_rows);
  const int64_t begin = block * p.depth_block;
  std::byte* out =
      p.panels + panel * p.PanelBytes() + begin / p.kernel.step * vectors * p.kernel.lanes * 4;
  p.kernel.pack(p.x.Row<float>(first + row) + begin, p.x.stride, panel_rows,
                std::min(p.depth_block, p.depth() - begin), vectors, p.weight.dtype == DType::kBF16,
                out);
}

// Widens `depth` elements from column k0 on of rows [n0, n0 + n), p.depth_block elements apart.
void WidenRows(const Product& p, int64_t n0, int64_t n, int64_t k0, int64_t depth, float* out) {
  const MatrixView& weight = p.weight;
  const BlockFormat* format = weight.format;
  const auto* row = static_cast<const std::byte*>(weight.data) + n0 * weight.RowBytes();
  row += format != nullptr ? k0 / format->values * format->bytes
                           : k0 * static_cast<int64_t>(SizeOf(weight.dtype));
  for (int64_t r = 0; r < n; ++r, row += weight.RowBytes(), out += p.depth_block) {
    if (format != nullptr) {
      format->to_float(row, depth / format->values, out);
    } else {
      Widen(weight.dtype, row, depth, out);
    }
  }
}

// Outputs [n0, n0 + n) of the packed tokens [first, first + rows).
void MultiplyBlock(const Product& p, int64_t first, int64_t rows, int64_t n0, int64_t n) {
  static thread_local Scratch sums_scratch, widened_scratch;
  const int64_t width = p.kernel.max_width();
  const int64_t tile = TileTokens(width);
  auto* sums = sums_scratch.Reserve<float>(static_cast<size_t>(tile * n));
  const auto element = static_cast<int64_t>(SizeOf(p.weight.dtype));
  for (int64_t t0 = 0; t0 < rows; t0 += tile) {
    const int64_t tile_rows = std::min(tile, rows - t0);
    for (int64_t k0 = 0; k0 < p.depth(); k0 += p.depth_block) {
      const int64_t depth = std::min(p.depth_block, p.depth() - k0);
      const auto* b =
          static_cast<const std::byte*>(p.weight.data) + (n0 * p.weight.stride + k0) * element;
      int64_t row_bytes = p.weight.stride * element;
      if (p.widen) {
        auto* widened = widened_scratch.Reserve<float>(static_cast<size_t>(n * p.depth_block));
        WidenRows(p, n0, n, k0, depth, widened);
        b = reinterpret_cast<const std::byte*>(widened);
        row_bytes = p.depth_block * 4;
      }
      for (int64_t row = 0; row < tile_rows; row += width) {
        const int64_t vectors = p.VectorsOf(tile_rows - row);
        const std::byte* panel = p.panels + (t0 + row) / width * p.PanelBytes() +
                                 k0 / p.kernel.step * vectors * p.kernel.lanes * 4;
        p.kernel.multiply(panel, vectors, depth, b, row_bytes, 4, n, k0 > 0, sums + row * n);
      }
    }
    for (int64_t row = 0; row < tile_rows; row += width) {
      const int64_t panel_rows = std::min(width, tile_rows - row);
      const int64_t panel_width = p.VectorsOf(panel_rows) * p.kernel.lanes;
      p.kernel.store(sums + row * n, panel_width, panel_rows, n,
                     p.bias != nullptr ? p.bias + n0 : nullptr, p.epilogue == Epilogue::kAdd,
                     p.y.Row<float>(first + t0 + row) + n0, p.y.stride);
    }
  }
}

}  // namespace

uint64_t GemmScratchBytes(int64_t rows, int64_t depth, int threads) {
  // The f32 kernel has the larger panels, and only it widens weights.
  const GemmKernel kernel = F32GemmKernel();
  const int64_t width = kernel.max_width();
  const int64_t panels = CeilDiv(std::min(rows, kTokenBlock), width) * width * depth;
  const int64_t widened = kWeightRows * std::max(DepthBlock(kernel, kernel.lanes, 1), kMostValues);
  const int64_t sums = TileTokens(width) * kWeightRows;
  return static_cast<uint64_t>((panels + threads * (widened + sums)) * 4);
}

void Gemm(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
          const MatrixView& y, Epilogue epilogue) {
  static thread_local Scratch panel_scratch;
  std::optional<GemmKernel> bf16_kernel;
  if (weight.dtype == DType::kBF16) bf16_kernel = Bf16GemmKernel();
  const GemmKernel kernel = bf16_kernel ? *bf16_kernel : F32GemmKernel();
  Product p{.kernel = kernel,
            .x = x,
            .weight = weight,
            .bias = bias,
            .y = y,
            .epilogue = epilogue,
            .widen = weight.dtype != DType::kF32 && !bf16_kernel,
            .depth_block = 0,
            .panels = nullptr};
  const int64_t widest = std::min(CeilDiv(x.rows, kernel.lanes) * kernel.lanes, kernel.max_width());
  const int64_t values = weight.format != nullptr ? weight.format->values : 1;
  LC_CHECK(values <= kMostValues);
  p.depth_block = DepthBlock(kernel, widest, values);
  const int64_t depth_blocks = std::max(CeilDiv(p.depth(), p.depth_block), int64_t{1});
  // Equally many blocks for every thread; the last ones even out disturbances.
  int64_t blocks = CeilDiv(weight.rows, kWeightRows);
  blocks = CeilDiv(blocks, pool.size()) * pool.size();
  const int64_t block_rows = CeilDiv(weight.rows, blocks);
  for (int64_t first = 0; first < x.rows; first += kTokenBlock) {
    const int64_t rows = std::min(kTokenBlock, x.rows - first);
    const int64_t panels = CeilDiv(rows, kernel.max_width());
    p.panels = panel_scratch.Reserve<std::byte>(static_cast<size_t>(panels * p.PanelBytes()));
    pool.ParallelFor(panels * depth_blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        PackPiece(p, first, rows, i / depth_blocks, i % depth_blocks);
      }
    });
    pool.ParallelFor(CeilDiv(weight.rows, block_rows), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        MultiplyBlock(p, first, rows, i * block_rows,
                      std::min(block_rows, weight.rows - i * block_rows));
      }
    });
  }
}

}  // namespace litecache::ops::cpu
