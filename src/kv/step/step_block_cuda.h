// What a step's kernels read about its sequences: written on the host, sent to the device once a
// step.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv {

// Decode sequences come first, then prompt chunks. Views keep their addresses as long as the block
// does not grow; the key of a recorded step includes memory().
class StepBlock {
 public:
  explicit StepBlock(Device& device) : device_(device) {}

  // Call before a step: makes room for its sequences.
  void Begin(int64_t decoding, int64_t prefilling);
  ops::cuda::StepSequence& at(int64_t index) { return sequences()[index]; }
  // One flag per sequence; its meaning is up to the policy.
  int32_t& flag(int64_t index) { return mirror_->host<int32_t>()[kCounts + index]; }
  // The step's number in device memory: different after each Begin(), never 0.
  const uint32_t* device_number() const { return mirror_->device<uint32_t>() + kNumber; }
  const int32_t* device_flags() const { return mirror_->device<int32_t>() + kCounts; }
  // Enqueues the copy to the device.
  void Send(Stream& stream);
  // The same by a kernel, for when copies keep the copy engine busy (ops/step/send_cuda.h).
  void SendByKernel(Stream& stream);

  // A view of all decode sequences, of one prompt chunk by its index, or of all chunks together.
  ops::cuda::StepView Decoding(int64_t max_context) const;
  ops::cuda::StepView Prefilling(int64_t index) const;
  ops::cuda::StepView AllPrefilling() const;
  // A second entry of a prompt chunk, for operations that spill its recent rows; max_rows: rows of
  // the sequence that are not stored.
  ops::cuda::StepSequence& ring(int64_t index) { return sequences()[ring_index(index)]; }
  ops::cuda::StepView Ring(int64_t index) const;
  ops::cuda::StepView AllRings() const;

  int64_t decoding() const { return decoding_; }
  int64_t prefilling() const { return prefilling_; }
  int64_t capacity() const { return capacity_; }
  // The block's memory, for the key of a recording. Valid once a step has begun.
  const Mirror& memory() const { return *mirror_; }

 private:
  // Before the flags: the number of decode sequences, 1, the step's number, that of chunks.
  static constexpr int64_t kCounts = 16, kNumber = 2, kChunks = 3;
  int64_t ring_index(int64_t index) const { return decoding_ + prefilling_ + index; }
  static size_t SequencesOffset(int64_t capacity) {
    return static_cast<size_t>(kCounts + capacity) * 4;
  }
  size_t used_bytes() const {
    return sequences_offset() +
           static_cast<size_t>(decoding_ + 2 * prefilling_) * sizeof(ops::cuda::StepSequence);
  }
  size_t sequences_offset() const { return SequencesOffset(capacity_); }
  ops::cuda::StepSequence* sequences() const {
    return reinterpret_cast<ops::cuda::StepSequence*>(mirror_->host() + sequences_offset());
  }
  const ops::cuda::StepSequence* device_sequences() const {
    return reinterpret_cast<const ops::cuda::StepSequence*>(mirror_->device() + sequences_offset());
  }

  Device& device_;
  std::unique_ptr<Mirror> mirror_;
  int64_t capacity_ = 0, decoding_ = 0, prefilling_ = 0;
  uint32_t number_ = 0;
};

// Grids and scratch are sized for the bucket, so that steps of one bucket share a recording.
inline int64_t ContextBucket(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens < 1024 ? 1024 : tokens)));
}

}  // namespace litecache::kv
