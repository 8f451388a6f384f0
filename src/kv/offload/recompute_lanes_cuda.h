// Computes rows anew from inputs that have arrived, beside the step's stream.
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

// Pieces go to two streams in turn: while one gathers inputs or writes rows, and while its
// product's last tiles leave most of the GPU idle, the other one multiplies.
class RecomputeLanes {
 public:
  static constexpr size_t kLanes = kRecomputeLanes;

  // tables outlive this.
  RecomputeLanes(CudaDevice& device, const Shape& shape, const Tables& tables);

  // Before a step: memory for pieces of up to `rows` rows.
  void Prepare(int64_t rows);
  // What is recomputed from here on waits for what `main` has been given so far.
  void Fork(Stream& main);
  // The same, and waits for nothing but what `before` enqueues: where no stream has done so yet.
  template <class Body>
  void StartAhead(const Body& before) {
    Stream& first = lanes_.front().branch.stream();
    before(first);
    Fork(first);
  }
  // Of the piece that Recompute() is called for next: what has to wait for its inputs.
  Stream& stream() { return lanes_[next_].branch.stream(); }
  // One piece of a layer: inputs of the tokens of `view`, sequences whose new rows they are, from
  // the staging buffer, or of layer 0 from where they are kept; rows to there. positions: device
  // memory, of its places (pieces.h).
  void Recompute(int64_t layer, size_t buffer, const ops::cuda::StepView& view,
                 std::span<const int32_t> positions, KeyValueProjection& projection);
  // The end of the buffer.
  void Mark(size_t buffer);
  // What `main` is given from here on finds the rows in the buffer.
  void Join(Stream& main, size_t buffer);
  void JoinAll(Stream& main);
  // Waits for the rest of a step that has failed.
  void Reset();

 private:
  struct Lane {
    CudaBranch branch;
    Buffer scratch;  // a piece's inputs, keys and values
  };

  CudaDevice& device_;
  Shape shape_;
  const Tables& tables_;
  int64_t rows_ = 0;  // that the scratch has room for
  size_t next_ = 0;
  std::array<Lane, kLanes> lanes_;
};

}  // namespace litecache::kv::offload
