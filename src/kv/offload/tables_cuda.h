// Where the operations of a step find rows and inputs: the cache's tables of pages, under the names
// that a step's sequences have for tables.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kv/offload/shape.h"
#include "kv/offload/table_uploads_cuda.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/sequence_table.h"
#include "ops/rows/inputs_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv::offload {

inline constexpr size_t kBuffers = Shape::kGpuBuffers;

// Of the step's sequences: rows as attention reads them, and as they arrive where that is another
// format; the staging buffers' lists one after another.
inline constexpr ops::cuda::TableId kRows = ops::cuda::kSlots, kArrived = ops::cuda::kMetadata;
// Of the inputs' sequences: inputs in the buffers, a list each; those kept on the host; layer 0's,
// kept on the device.
inline constexpr ops::cuda::TableId kStagedInputs = kArrived;
inline constexpr ops::cuda::TableId kHostInputs = ops::cuda::kStore;
inline constexpr ops::cuda::TableId kFirstInputs = ops::cuda::kResident;

class Tables {
 public:
  Tables(Device& device, const Shape& shape);

  ops::cuda::RowTable Resident(int64_t layer) const;
  ops::cuda::RowTable Store(int64_t layer) const;
  // Of a staging buffer.
  ops::cuda::RowTable Rows(size_t buffer) const;
  ops::cuda::RowTable Arrived(size_t buffer) const;
  // Where the store's rows land: Arrived() where they are expanded behind that.
  ops::cuda::RowTable Landing(size_t buffer) const {
    return shape_.expands() ? Arrived(buffer) : Rows(buffer);
  }
  // Where a layer's inputs are kept.
  ops::cuda::InputTable KeptInputs(int64_t layer) const;
  ops::cuda::InputTable StagedInputs(size_t buffer) const;

 private:
  Shape shape_;
  // int32: resident [layers][kv_heads], store [layers][kv_heads], staged [buffers][kv_heads]
  Buffer lists_;
};

// A sequence's pages, of all its layers.
class SequencePages {
 public:
  DevicePages resident, store, inputs, first_inputs;

  // What changes goes to `uploads`.
  void Update(Device& device, TableUploads& uploads, const Shape& shape,
              const SequenceTable& resident_table, const SequenceTable& store_table,
              const SequenceTable& input_table, const SequenceTable& first_input_table,
              SequenceId id);
};

}  // namespace litecache::kv::offload
