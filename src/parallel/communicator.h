// What the ranks of tensor parallelism do together: sums and concatenations of their activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

namespace litecache::parallel {

// One rank's end. All ranks call the same operations in the same order, with equal shapes. An
// operation throws RankEnded where another rank has ended; on a GPU, Stream::Synchronize() does.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // x becomes the sum of all ranks' x, with the same bits on each. x [T, n] f32, contiguous.
  virtual void AllReduce(Stream& stream, const MatrixView& x) = 0;
  // A faster way for few rows, 5 us instead of 18 between two H200, and for many between two ranks.
  // Each rank writes its summand to memory that the others can read, [rows, cols] f32, from
  // NextSummand(); it is valid until the next but one is written, and empty if there is none of
  // that size. Then y = or y += the sum of the ranks' summands, with the same bits on each. Steps
  // begin with another operation.
  virtual MatrixView NextSummand(int64_t rows, int64_t cols) { return {}; }
  virtual void SumSummands(Stream& stream, const MatrixView& summand, ops::Epilogue epilogue,
                           const MatrixView& y) {}
  // all [ranks * T, n] f32: the ranks' own [T, n], one behind another; both contiguous.
  virtual void AllGather(Stream& stream, const MatrixView& own, const MatrixView& all) = 0;
};

class ProcessGroup;

// The group itself for ranks on CPUs; NCCL's for ranks with the GPU of `device`: then it throws
// DeviceError if NCCL cannot be loaded or started, and Unsupported in a build without its header.
std::shared_ptr<Communicator> Connect(Device& device, std::shared_ptr<ProcessGroup> group);

}  // namespace litecache::parallel
