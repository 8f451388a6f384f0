// Recomputes rows from transferred inputs, in parallel with the step's stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/offload/recompute.h"
#include "kv/offload/shape.h"
#include "kv/offload/tables_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv::offload {

// Pieces alternate between two streams: while one gathers inputs or writes rows, or its product's
// last tiles leave most of the GPU idle, the other one multiplies.
class RecomputeLanes {
 public:
  static constexpr size_t kLanes = kRecomputeLanes;

  // tables must outlive this object.
  RecomputeLanes(CudaDevice& device, const Shape& shape, const Tables& tables);

  // Call before a step that recomputes: allocates the memory, for the largest pieces, if that has
  // not been done.
  void Prepare();
  // Recomputation from here on waits for the operations enqueued on `main` so far.
  void Fork(Stream& main);
  // The same without waiting for a stream: `before` enqueues what each lane waits for.
  template <class Body>
  void StartAhead(const Body& before) {
    Stream& first = lanes_.front().branch.stream();
    before(first);
    Fork(first);
  }
  // The stream of the next piece; make it wait for the piece's inputs before Recompute().
  Stream& stream() { return lanes_[next_].branch.stream(); }
  // Recomputes one piece of a layer. `view` describes its tokens as sequences whose new rows they
  // are. Inputs come from the staging buffer, for layer 0 from where they are kept; rows go to the
  // buffer. positions: device memory, one per place (pieces.h).
  void Recompute(int64_t layer, size_t buffer, const ops::cuda::StepView& view,
                 std::span<const int32_t> positions, KeyValueProjection& projection);
  // Marks the end of the buffer's recomputation.
  void Mark(size_t buffer);
  // Operations enqueued on `main` from here on see the rows in the buffer.
  void Join(Stream& main, size_t buffer);
  void JoinAll(Stream& main);
  // Waits for the remaining operations of a step that has failed.
  void Reset();

 private:
  struct Lane {
    CudaBranch branch;
    Buffer scratch;  // a piece's inputs, keys and values
  };

  CudaDevice& device_;
  Shape shape_;
  const Tables& tables_;
  size_t next_ = 0;
  std::array<Lane, kLanes> lanes_;
};

}  // namespace litecache::kv::offload
