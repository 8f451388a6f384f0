// Where the operations of a step find rows and inputs: the cache's page tables, under the table ids
// of a step's sequences.
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

// Tables of the step's sequences: rows as attention reads them, and rows in the store's format if
// that differs; the staging buffers' lists one after another.
inline constexpr ops::cuda::TableId kRows = ops::cuda::kSlots, kArrived = ops::cuda::kMetadata;
// Tables of the sequences for inputs: inputs in the buffers, one list each; those kept on the host;
// layer 0's, kept on the device.
inline constexpr ops::cuda::TableId kStagedInputs = kArrived;
inline constexpr ops::cuda::TableId kHostInputs = ops::cuda::kStore;
inline constexpr ops::cuda::TableId kFirstInputs = ops::cuda::kResident;

class Tables {
 public:
  Tables(Device& device, const Shape& shape);

  ops::cuda::RowTable Resident(int64_t layer) const;
  ops::cuda::RowTable Store(int64_t layer) const;
  // Rows in a staging buffer.
  ops::cuda::RowTable Rows(size_t buffer) const;
  ops::cuda::RowTable Arrived(size_t buffer) const;
  // Where the store's rows are transferred to: Arrived() if they are dequantized afterwards.
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

  // Adds changed pages to `uploads`.
  void Update(Device& device, TableUploads& uploads, const Shape& shape,
              const SequenceTable& resident_table, const SequenceTable& store_table,
              const SequenceTable& input_table, const SequenceTable& first_input_table,
              SequenceId id);
};

}  // namespace litecache::kv::offload
