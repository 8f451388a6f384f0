#include "kv/step/step_block_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "ops/step/send_cuda.h"

namespace litecache::kv {

void StepBlock::Begin(int64_t decoding, int64_t prefilling) {
  const int64_t count = decoding + 2 * prefilling;
  if (count > capacity_) {
    int64_t capacity = std::max<int64_t>({count, 2 * capacity_, 64});
    capacity = (capacity + 15) / 16 * 16;  // keeps the sequences behind the flags aligned
    mirror_ = device_.CreateMirror(SequencesOffset(capacity) +
                                   static_cast<size_t>(capacity) * sizeof(ops::cuda::StepSequence));
    capacity_ = capacity;
  }
  decoding_ = decoding;
  prefilling_ = prefilling;
  auto* counts = mirror_->host<int32_t>();
  counts[0] = static_cast<int32_t>(decoding);
  counts[1] = 1;
  counts[kChunks] = static_cast<int32_t>(prefilling);
  if (++number_ == 0) number_ = 1;
  mirror_->host<uint32_t>()[kNumber] = number_;
  std::fill_n(counts + kCounts, capacity_, 0);
}

void StepBlock::Send(Stream& stream) { mirror_->Send(stream, used_bytes()); }

void StepBlock::SendByKernel(Stream& stream) {
  ops::cuda::SendByKernel(stream, *mirror_, used_bytes());
}

ops::cuda::StepView StepBlock::Decoding(int64_t max_context) const {
  return {.sequences = device_sequences(),
          .count = mirror_->device<int32_t>(),
          .capacity = static_cast<int32_t>(decoding_),
          .max_rows = 1,
          .max_context = static_cast<int32_t>(max_context)};
}

ops::cuda::StepView StepBlock::Prefilling(int64_t index) const {
  LC_CHECK(index >= 0 && index < prefilling_);
  const ops::cuda::StepSequence& sequence = sequences()[decoding_ + index];
  return {.sequences = device_sequences() + decoding_ + index,
          .count = mirror_->device<int32_t>() + 1,
          .capacity = 1,
          .max_rows = sequence.rows,
          .max_context = sequence.past + sequence.rows};
}

ops::cuda::StepView StepBlock::AllPrefilling() const {
  ops::cuda::StepView all{.sequences = device_sequences() + decoding_,
                          .count = mirror_->device<int32_t>() + kChunks,
                          .capacity = static_cast<int32_t>(prefilling_)};
  for (int64_t i = 0; i < prefilling_; ++i) {
    const ops::cuda::StepView one = Prefilling(i);
    all.max_rows = std::max(all.max_rows, one.max_rows);
    all.max_context = std::max(all.max_context, one.max_context);
  }
  return all;
}

ops::cuda::StepView StepBlock::Ring(int64_t index) const {
  ops::cuda::StepView view = Prefilling(index);
  const ops::cuda::StepSequence& sequence = sequences()[decoding_ + index];
  view.sequences = device_sequences() + ring_index(index);
  view.max_rows = sequence.past - sequence.stored;
  return view;
}

ops::cuda::StepView StepBlock::AllRings() const {
  ops::cuda::StepView all = AllPrefilling();
  all.sequences = device_sequences() + ring_index(0);
  all.max_rows = 0;
  for (int64_t i = 0; i < prefilling_; ++i) {
    all.max_rows = std::max(all.max_rows, Ring(i).max_rows);
  }
  return all;
}

}  // namespace litecache::kv
