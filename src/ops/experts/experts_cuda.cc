// Selects the kernels of a layer's products. gate and up on the one side and down on the other may
// have weights of different types, so each side has its own way.
#include "ops/experts/experts_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/experts/combine_experts_cuda.h"
#include "ops/experts/expert_lists_cuda.h"
#include "ops/experts/expert_slots_cuda.h"
#include "ops/experts/grouped_gemm_cuda.h"
#include "ops/experts/plain_experts_cuda.h"
#include "ops/experts/quantized_experts_cuda.h"
#include "ops/experts/row_products_cuda.h"

namespace litecache::ops::cuda {
namespace {

enum class Way {
  kPlain,           // plain_experts_cuda.h
  kPairs,           // row_products_cuda.h, without lists
  kTiles,           // the same with lists
  kGrouped,         // grouped_gemm_cuda.h
  kQuantizedPairs,  // quantized_experts_cuda.h, without lists, or with lists of single rows
  kQuantizedTiles,  // the same with lists
  kUnpacked,        // the same, by the grouped GEMM; bf16 weights in host memory, too
};

// On a batch-invariant stream, up to this many rows have the same bits whatever the other rows.
constexpr int64_t kInvariantRows = 16;
// Up to this many pairs of an expert on average, a second tile of 16, whose weights come from the
// L2 cache, costs less than the mostly empty tile of the GEMM.
constexpr int64_t kMostTilePairs = 12;

// Of gate and up (down: null), or of down alone.
struct Side {
  const ExpertMatrices* first;
  const ExpertMatrices* second;
};

bool IsBlocks(const ExpertMatrices& matrices) { return matrices.type.dtype == DType::kBlocks; }

// The dtype of x and of activations between the products.
DType ProductType(const ExpertMatrices& matrices) {
  return IsBlocks(matrices) ? DType::kBF16 : matrices.type.dtype;
}

// Whether rows of bf16 consist of whole 16-byte chunks.
bool HasChunks(const MatrixView& m) {
  return m.cols % 8 == 0 && m.stride % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

// x: what enters a product; matrices have no data of their own. experts: wherever they are, so that
// pairs / experts is the average of one.
Way NumbersWay(const CudaStream& stream, const Side& side, const MatrixView& x, int64_t rows,
               int64_t active, int64_t experts, bool on_host) {
  const MatrixView& type = side.first->type;
  bool chunks = type.dtype == DType::kBF16 && HasChunks(x) && type.rows % 8 == 0;
  for (const ExpertMatrices* matrices : {side.first, side.second}) {
    chunks = chunks && (matrices == nullptr || HasChunks(matrices->type));
  }
  if (!chunks) return Way::kPlain;
  if (rows <= kMostExpertPairRows && !stream.batch_invariant()) return Way::kPairs;
  if (rows <= kInvariantRows || rows * active <= kMostTilePairs * experts) {
    return Way::kTiles;
  }
  // Tiles of an expert would each read its weights over the link.
  return on_host ? Way::kUnpacked : Way::kGrouped;
}

Way WayOf(const CudaStream& stream, const Side& side, const MatrixView& x, int64_t rows,
          int64_t active, int64_t experts, bool on_host) {
  if (side.second != nullptr) LC_CHECK(IsBlocks(*side.first) == IsBlocks(*side.second));
  if (!IsBlocks(*side.first)) {
    return NumbersWay(stream, side, x, rows, active, experts, on_host);
  }
  switch (WayOfQuantizedExperts(rows, active, experts)) {
    case QuantizedExpertsWay::kPairs:
      return Way::kQuantizedPairs;
    case QuantizedExpertsWay::kTiles:
      return Way::kQuantizedTiles;
    case QuantizedExpertsWay::kUnpacked:
      return Way::kUnpacked;
  }
  LC_CHECK(false);
}

// Rows of the tiles in a way's lists; 0: it needs none.
int64_t TileRowsOf(Way way, const ExpertLayer& layer, const Routing& routing) {
  switch (way) {
    case Way::kQuantizedPairs:
      // Of a single row, those that are here come first.
      return layer.elsewhere > 0 && routing.rows > 1 ? 1 : 0;
    case Way::kTiles:
      return kExpertTileRows;
    case Way::kQuantizedTiles:
      return kQuantizedExpertRows;
    case Way::kGrouped:
    case Way::kUnpacked:
      return GroupedTileRows(routing.rows * routing.active, layer.all());
    default:
      return 0;
  }
}

// Whether down adds to y by itself.
bool AddsToY(Way way) { return way == Way::kPlain || way == Way::kPairs; }

uint64_t Padded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// The sections of the scratch memory; sizes do not depend on the ways, so that those for fewer rows
// are never larger.
class Sections {
 public:
  Sections(const ExpertLayer& layer, int64_t rows, int64_t active, void* scratch)
      : next_(static_cast<uint8_t*>(scratch)) {
    const int64_t pairs = rows * active, experts = layer.gate.count;
    const DType dtype = ProductType(layer.gate);
    h = Take(dtype, pairs, layer.gate.type.rows);
    if (dtype != DType::kBF16) return;
    output = Take(dtype, pairs, layer.gate.type.cols);
    const bool blocks = IsBlocks(layer.gate) || IsBlocks(layer.down);
    const int64_t tile_rows = blocks && layer.elsewhere > 0 ? 1 : kLeastTileRows;
    for (void*& memory : lists) memory = Take(ExpertListBytes(pairs, experts, tile_rows));
    if (layer.slots != nullptr || blocks) {
      unpacked = Take(UnpackedExpertsBytes(layer));
    }
  }

  uint64_t bytes() const { return bytes_; }

  MatrixView h;       // [pairs, intermediate]
  MatrixView output;  // [pairs, hidden]
  void* lists[2] = {};
  void* unpacked = nullptr;

 private:
  static constexpr int64_t kLeastTileRows = std::min(kExpertTileRows, kQuantizedExpertRows);

  void* Take(uint64_t bytes) {
    void* const taken = next_ == nullptr ? nullptr : next_ + bytes_;
    bytes_ += Padded(bytes);
    return taken;
  }
  MatrixView Take(DType dtype, int64_t rows, int64_t cols) {
    return MatrixView::Of(Take(static_cast<uint64_t>(rows * cols) * SizeOf(dtype)), dtype, rows,
                          cols);
  }

  uint8_t* next_;
  uint64_t bytes_ = 0;
};

// How the rows of a side's products are grouped.
struct Plan {
  Way way;
  int64_t tile_rows;
  ExpertLists lists;
};

void Gated(CudaStream& stream, const MatrixView& x, const Routing& routing, const Plan& plan,
           const ExpertLayer& layer, const GateFunction& function, const Sections& sections) {
  const auto& [way, tile_rows, lists] = plan;
  const ExpertMatrices &gate = layer.gate, &up = layer.up;
  const MatrixView& h = sections.h;
  switch (way) {
    case Way::kPlain:
      return PlainGated(stream, x, routing, gate, up, function, h);
    case Way::kPairs:
      return GatedPairs(stream, x, routing, gate, up, function, h);
    case Way::kTiles:
      return GatedTiles(stream, x, routing.active, lists, gate, up, function, h);
    case Way::kGrouped:
      return GroupedGatedGemm(stream, x, routing.active, lists, tile_rows, AllExperts(gate),
                              AllExperts(up), function, h);
    case Way::kQuantizedPairs:
    case Way::kQuantizedTiles:
      return QuantizedExpertsGated(stream, x, routing, lists, gate, up, function, h);
    case Way::kUnpacked:
      return UnpackedExpertsGated(stream, x, routing.active, lists, tile_rows, gate, up, function,
                                  sections.unpacked, h);
  }
}

void Down(CudaStream& stream, const Routing& routing, const Plan& plan, const ExpertMatrices& down,
          const Sections& sections, const MatrixView& y) {
  const auto& [way, tile_rows, lists] = plan;
  const MatrixView &h = sections.h, &output = sections.output;
  switch (way) {
    case Way::kPlain:
      return PlainDown(stream, h, routing, down, y);
    case Way::kPairs:
      return DownPairs(stream, h, routing, down, y);
    case Way::kTiles:
      return DownTiles(stream, h, lists, down, output);
    case Way::kGrouped:
      return GroupedGemm(stream, h, lists, tile_rows, AllExperts(down), output);
    case Way::kQuantizedPairs:
    case Way::kQuantizedTiles:
      return QuantizedExpertsDown(stream, h, routing, lists, down, output);
    case Way::kUnpacked:
      return UnpackedExpertsDown(stream, h, lists, tile_rows, down, sections.unpacked, output);
  }
}

}  // namespace

uint64_t ExpertScratchBytes(const ExpertLayer& layer, int64_t rows, int64_t active) {
  return Sections(layer, rows, active, nullptr).bytes();
}

void Experts(Stream& stream, const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
             const GateFunction& function, void* scratch, const MatrixView& y) {
  CudaStream& cuda = AsCuda(stream);
  const DType dtype = ProductType(layer.gate);
  LC_CHECK(x.dtype == dtype && ProductType(layer.up) == dtype && ProductType(layer.down) == dtype &&
               (dtype == DType::kF32 || dtype == DType::kBF16),
           "x {}, weights {}, {}, {}", Name(x.dtype), Name(layer.gate.type.dtype),
           Name(layer.up.type.dtype), Name(layer.down.type.dtype));
  const Sections sections(layer, routing.rows, routing.active, scratch);
  const auto plan_of = [&](const Side& side, const MatrixView& input) {
    const Way way =
        WayOf(cuda, side, input, routing.rows, routing.active, layer.all(), layer.slots != nullptr);
    return Plan{.way = way,
                .tile_rows = TileRowsOf(way, layer, routing),
                .lists = {.leading = layer.elsewhere > 0}};
  };
  Plan gated = plan_of({&layer.gate, &layer.up}, x);
  Plan down = plan_of({&layer.down, nullptr}, sections.h);
  const bool unpacks = gated.way == Way::kUnpacked || down.way == Way::kUnpacked;
  if (layer.slots != nullptr) {
    unpacks ? CountExpertsRead(cuda, *layer.slots) : AdmitExperts(cuda, routing, *layer.slots);
  }
  // Both before the first product: kernels of down read the lists before they wait for the kernel
  // before them, which must not be the one that writes them.
  const auto list = [&](Plan& plan, void* memory) {
    plan.lists = ListExperts(cuda, routing, layer.gate.count, plan.tile_rows, memory);
  };
  if (gated.tile_rows > 0) list(gated, sections.lists[0]);
  if (down.tile_rows == gated.tile_rows) {
    down.lists = gated.lists;
  } else if (down.tile_rows > 0) {
    list(down, sections.lists[1]);
  }
  Gated(cuda, x, routing, gated, layer, function, sections);
  Down(cuda, routing, down, layer.down, sections, y);
  if (!AddsToY(down.way)) CombineExperts(cuda, routing, sections.output, y);
}

}  // namespace litecache::ops::cuda
