#include "base/error.h"
#include "ops/common/vectors.cuh"
#include "ops/experts/quantized_experts_cuda.h"
#include "ops/experts/quantized_experts_parts.cuh"
#include "ops/linear/quantized/gemv_cuda.h"
#include "ops/linear/quantized/linear_cuda.h"
#include "ops/linear/quantized/unpack_blocks.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace quantized;

// Unpacking a 4-bit weight moves eight times as many bytes as reading it, which every tile does.
constexpr int64_t kMostPairsOfExpert = 32;
// The part of the weights that pairs read twice, if they read their own: one of so many. With more,
// lists and tiles of eight rows take less time.
constexpr int64_t kLeastReadOnce = 8;

ExpertArguments MakeArguments(const MatrixView& x, const Routing& routing, const ExpertLists& lists,
                              const ExpertMatrices& weights, const MatrixView& y) {
  const MatrixView& type = weights.type;
  const int64_t pairs = routing.rows * routing.active;
  LC_CHECK(x.dtype == DType::kBF16 && x.cols >= 1 && x.cols == type.cols && y.cols == type.rows &&
               y.rows == pairs,
           "x [{}, {}], weights [{}, {}], y [{}, {}]", x.rows, x.cols, type.rows, type.cols, y.rows,
           y.cols);
  LC_CHECK(y.dtype == DType::kBF16 || y.dtype == DType::kF32);
  const int64_t units = (type.rows + kRowsOfTile - 1) / kRowsOfTile;
  const int64_t tiles = lists.order != nullptr ? lists.most_tiles : pairs;
  LC_CHECK(type.rows <= INT32_MAX / 8 && type.cols <= INT32_MAX / 8 && pairs <= INT32_MAX / 8 &&
           tiles * units <= INT32_MAX / 8);
  ExpertArguments a{.product = {.x = x.Row<const __nv_bfloat16>(0),
                                .x_stride = x.stride,
                                .rows = static_cast<int32_t>(x.rows),
                                .depth = static_cast<int32_t>(x.cols),
                                .chunks = static_cast<int32_t>(PackedChunks(x.cols)),
                                .wide_x = Aligned(x, 8),
                                .add = false,
                                .gated = false,
                                .function = {},
                                .targets = {}},
                    .experts = routing.experts,
                    .lists = lists,
                    .weights = {weights.data, nullptr},
                    .biases = {ExpertBiases::Of(weights)},
                    .count = static_cast<int32_t>(weights.count),
                    .outputs = static_cast<int32_t>(type.rows),
                    .units = static_cast<int32_t>(units),
                    .y = y.data,
                    .y_stride = y.stride,
                    .bf16_y = y.dtype == DType::kBF16};
  a.lists.most_tiles = static_cast<int32_t>(tiles);
  return a;
}

void Launch(CudaStream& stream, const MatrixView& type, const ExpertArguments& a) {
  if (a.lists.most_tiles == 0 || a.units == 0) return;
  CallForLayout(type, [&]<int kLayout>() { LaunchExpertsLayout<kLayout>(stream, a); });
}

}  // namespace

QuantizedExpertsWay WayOfQuantizedExperts(int64_t rows, int64_t active, int64_t experts) {
  const int64_t pairs = rows * active;
  if (rows > kMostInvariantRows && pairs > kMostPairsOfExpert * experts) {
    return QuantizedExpertsWay::kUnpacked;
  }
  // With any other row's pairs, a pair shares its weights active / experts times on average.
  const bool few = (pairs - active) * kLeastReadOnce <= 2 * experts;
  // Without room for x of eight rows, there is no other way to have exact weights.
  return few || SharedMemoryOfBlock() < kTwoTeamsBytes ? QuantizedExpertsWay::kPairs
                                                       : QuantizedExpertsWay::kTiles;
}

void QuantizedExpertsGated(CudaStream& stream, const MatrixView& x, const Routing& routing,
                           const ExpertLists& lists, const ExpertMatrices& gate,
                           const ExpertMatrices& up, const GateFunction& function,
                           const MatrixView& h) {
  LC_CHECK(x.rows == routing.rows && gate.count == up.count && gate.type.rows == up.type.rows &&
           gate.type.cols == up.type.cols);
  ExpertArguments a = MakeArguments(x, routing, lists, gate, h);
  a.divisor = static_cast<int32_t>(routing.active);
  a.product.function = function;
  if (SamePackedLayout(*gate.type.format, *up.type.format)) {
    a.weights[1] = up.data;
    a.biases[1] = ExpertBiases::Of(up);
    a.result = ExpertResult::kGated;
    return Launch(stream, gate.type, a);
  }
  a.result = ExpertResult::kFunction;
  Launch(stream, gate.type, a);
  a.weights[0] = up.data;
  a.biases[0] = ExpertBiases::Of(up);
  a.result = ExpertResult::kTimes;
  a.early = true;
  Launch(stream, up.type, a);
}

void QuantizedExpertsDown(CudaStream& stream, const MatrixView& h, const Routing& routing,
                          const ExpertLists& lists, const ExpertMatrices& down,
                          const MatrixView& y) {
  LC_CHECK(h.rows == routing.rows * routing.active);
  ExpertArguments a = MakeArguments(h, routing, lists, down, y);
  a.early = true;
  Launch(stream, down.type, a);
}

}  // namespace litecache::ops::cuda
