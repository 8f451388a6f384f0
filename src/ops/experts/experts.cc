#include "ops/experts/experts.h"

#include <algorithm>

#include "device/sections.h"
#include "ops/common/available_cuda.h"
#include "ops/experts/experts_cpu.h"
#include "ops/experts/experts_cuda.h"

namespace litecache::ops {
namespace {

void CheckShapes(const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
                 const MatrixView& y) {
  const int64_t hidden = x.cols, intermediate = layer.gate.type.rows, count = layer.gate.count;
  LC_CHECK(y.dtype == DType::kF32 && y.rows == x.rows && y.cols == hidden && x.stride >= hidden &&
               y.stride >= hidden,
           "x [{}, {}], y [{}, {}]", x.rows, x.cols, y.rows, y.cols);
  LC_CHECK(routing.rows == x.rows && routing.active >= 1 && routing.active <= kMostActiveExperts &&
               routing.active <= layer.all() && layer.all() <= kMostExperts,
           "{} rows, {} of {} experts for {} rows", routing.rows, routing.active, layer.all(),
           x.rows);
  for (const ExpertMatrices* matrices : {&layer.gate, &layer.up, &layer.down}) {
    const bool down = matrices == &layer.down;
    LC_CHECK(matrices->count == count && matrices->type.rows == (down ? hidden : intermediate) &&
                 matrices->type.cols == (down ? intermediate : hidden),
             "{} experts' matrices [{}, {}]", matrices->count, matrices->type.rows,
             matrices->type.cols);
  }
}

}  // namespace

void Route(Stream& stream, const MatrixView& logits, const Router& router, const Routing& routing,
           const MatrixView& share, const ExpertRange& own) {
  const int64_t shared = share.rows > 0 ? 1 : 0, routed = routing.active - shared;
  LC_CHECK(logits.dtype == DType::kF32 && logits.rows == routing.rows && logits.cols >= 1 &&
               logits.cols <= kMostExperts && routed >= 1 && routed <= logits.cols &&
               routing.active <= kMostActiveExperts,
           "logits [{}, {}], {} experts for {} rows", logits.rows, logits.cols, routing.active,
           routing.rows);
  LC_CHECK(shared == 0 ||
           (share.dtype == DType::kF32 && share.rows == routing.rows && share.cols == 1));
  const ExpertRange here = own.count > 0 ? own : ExpertRange{0, logits.cols};
  LC_CHECK(here.first >= 0 && here.first + here.count <= logits.cols &&
               (shared == 0 || here.count == logits.cols),
           "experts [{}, {}) of {}", here.first, here.first + here.count, logits.cols);
  if (routing.rows == 0) return;
  const SectionScope section(stream, Section::kProducts);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Route(stream, logits, router, routing, share, here);
  }
  cpu::Route(logits, router, routing, share, here);
}

uint64_t ExpertScratchBytes(DeviceType device, const ExpertLayer& layer, int64_t rows,
                            int64_t active) {
  if constexpr (cuda::kAvailable) {
    if (device == DeviceType::kCuda) return cuda::ExpertScratchBytes(layer, rows, active);
  }
  return cpu::ExpertScratchBytes(layer, rows, active);
}

void Experts(Stream& stream, const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
             const GateFunction& function, void* scratch, const MatrixView& y) {
  CheckShapes(x, routing, layer, y);
  if (x.rows == 0) return;
  const SectionScope section(stream, Section::kProducts);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) {
      return cuda::Experts(stream, x, routing, layer, function, scratch, y);
    }
  }
  LC_CHECK(x.dtype == DType::kF32);
  cpu::Experts(stream, x, routing, layer, function, scratch, y);
}

}  // namespace litecache::ops
