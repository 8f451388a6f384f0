// Experts that stay in host memory: the GPU reads them there, and keeps copies of those used last
// (ops/experts/expert_slots_cuda.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/matrix_view.h"
#include "device/device.h"
#include "model/decoder.h"
#include "model/weight_types.h"
#include "ops/experts/experts.h"

namespace litecache::model {

// Bytes from one expert's matrix to the next in a GPU's memory; type: as on the GPU.
uint64_t ExpertStride(const MatrixView& type);
// The slots of a layer of `count` experts of which a share has copies on the device.
int64_t ExpertSlotsOf(double share, int64_t count);
// Bytes on the device for a layer whose experts stay in host memory; stride: of the three matrices
// of an expert together.
uint64_t ExpertSlotBytes(int64_t count, int64_t slots, uint64_t stride);

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;

  // ---- While weights are loaded ----
  // Adds a layer of `count` experts whose gate, up and down have these types (views without data).
  // Expert e's matrix of part p is to be put at host[p] + e * ExpertStride(types[p]).
  struct Layer {
    ops::ExpertLayer experts;
    std::array<std::byte*, ops::kExpertParts> host;
  };
  virtual Layer Add(int64_t count, const std::array<MatrixView, ops::kExpertParts>& types) = 0;
  // Call when the last layer's host memory has been filled: its first experts get the slots.
  virtual void FillSlots() = 0;

  virtual uint64_t host_bytes() const = 0;    // of experts in host memory
  virtual uint64_t device_bytes() const = 0;  // of the slots and what belongs to them
  // Of the steps so far; waits for them.
  virtual ExpertCounts counts() const = 0;
};

// device: a CudaDevice. share: of each layer's experts, those that have a slot.
std::unique_ptr<ExpertStore> CreateCudaExpertStore(Device& device, double share);

}  // namespace litecache::model
