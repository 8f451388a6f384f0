#include "kv/offload/recompute_lanes_cuda.h"

#include "base/matrix_view.h"
#include "ops/rows/append_rows_cuda.h"
#include "ops/rows/inputs_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv::offload {

RecomputeLanes::RecomputeLanes(CudaDevice& device, const Shape& shape, const Tables& tables)
    : device_(device),
      shape_(shape),
      tables_(tables),
      lanes_{Lane{CudaBranch(device, kBuffers, /*first=*/false), {}},
             Lane{CudaBranch(device, kBuffers, /*first=*/false), {}}} {}

void RecomputeLanes::Prepare() {
  const Layout& layout = shape_.layout;
  const size_t bytes = static_cast<size_t>(kGpuRecomputeTokens) *
                       (static_cast<size_t>(layout.hidden) * SizeOf(layout.dtype) +
                        2 * static_cast<size_t>(layout.kv_heads * layout.head_dim) * sizeof(float));
  for (Lane& lane : lanes_) {
    if (lane.scratch.size() == 0) lane.scratch = device_.Allocate(bytes);
  }
}

void RecomputeLanes::Fork(Stream& main) {
  for (Lane& lane : lanes_) lane.branch.Fork(main);
}

void RecomputeLanes::Recompute(int64_t layer, size_t buffer, const ops::cuda::StepView& view,
                               std::span<const int32_t> positions, KeyValueProjection& projection) {
  const auto rows = static_cast<int64_t>(positions.size());
  LC_CHECK(rows <= kGpuRecomputeTokens);
  const Layout& layout = shape_.layout;
  const int64_t width = layout.kv_heads * layout.head_dim;
  Lane& lane = lanes_[next_];
  next_ = (next_ + 1) % kLanes;
  const int64_t room =
      kGpuRecomputeTokens * layout.hidden * static_cast<int64_t>(SizeOf(layout.dtype));
  // If nothing follows the products, they write bf16 rows themselves: half the bytes to write and
  // read. Otherwise f32: a row's bytes are a multiple of 4, and in wide models of 16.
  const DType dtype = ops::cuda::AppendsBf16(shape_.format) ? projection.rounds_to() : DType::kF32;
  std::byte* keys = lane.scratch.as<std::byte>() + room;
  std::byte* values = keys + kGpuRecomputeTokens * width * static_cast<int64_t>(SizeOf(dtype));
  const auto x = MatrixView::Of(lane.scratch.data(), layout.dtype, rows, layout.hidden);
  const auto k = MatrixView::Of(keys, dtype, rows, width);
  const auto v = MatrixView::Of(values, dtype, rows, width);
  Stream& stream = lane.branch.stream();
  ops::cuda::GatherInputs(stream, view,
                          layer == 0 ? tables_.KeptInputs(layer) : tables_.StagedInputs(buffer), x);
  projection.Project(stream, layer, x, positions, k, v);
  ops::cuda::AppendRows(stream, view, layout.kv_heads, tables_.Rows(buffer), k, v);
}

void RecomputeLanes::Mark(size_t buffer) {
  for (Lane& lane : lanes_) lane.branch.Mark(static_cast<int>(buffer));
}

void RecomputeLanes::Join(Stream& main, size_t buffer) {
  for (Lane& lane : lanes_) lane.branch.Join(main, static_cast<int>(buffer));
}

void RecomputeLanes::JoinAll(Stream& main) {
  for (Lane& lane : lanes_) lane.branch.JoinAll(main);
}

void RecomputeLanes::Reset() {
  for (Lane& lane : lanes_) lane.branch.Reset();
}

}  // namespace litecache::kv::offload
