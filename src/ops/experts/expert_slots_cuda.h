// Experts whose matrices are in host memory, which a GPU reads over the link: those used last are
// also in slots of the GPU's memory. What is in which slot is decided on the GPU, so that a step
// with experts on the host is a graph like any other.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

// What the kernels know of a layer's slots; device memory.
struct ExpertSlotState {
  int32_t slot_of[kMostExperts];    // or -1: it is in host memory only
  int32_t expert_in[kMostExperts];  // or -1: the slot is empty
  uint32_t used[kMostExperts];      // the step that used a slot last; 0: none has
  uint32_t step;
  // Since the beginning: experts that steps used, those of them that were in a slot, and the bytes
  // that were read over the link.
  uint64_t lookups, hits, bytes;
  // What the current step moves into slots.
  int32_t moves;
  struct Move {
    int32_t expert, slot;
  } move[kMostExperts];
};

}  // namespace litecache::ops::cuda

namespace litecache::ops {

// The slots of a layer; all pointers but `state` are to memory that the device reads.
struct ExpertSlots {
  struct Part {
    const void* const* host = nullptr;  // [experts], in host memory
    std::byte* slots = nullptr;         // [slots]
    int64_t stride = 0;                 // bytes from one slot to the next
    int64_t bytes = 0;                  // of a matrix, a multiple of 16
    const void** data = nullptr;        // [experts]: ExpertMatrices::data, which the kernels set
  };
  Part parts[kExpertParts];
  int64_t experts = 0, slots = 0;
  cuda::ExpertSlotState* state = nullptr;
};

}  // namespace litecache::ops

namespace litecache::ops::cuda {

// Moves the experts of a routing that are in no slot into those that were used longest ago, and
// writes where every expert is. More experts than slots stay in host memory, where products read
// them. Two launches.
void AdmitExperts(CudaStream& stream, const Routing& routing, const ExpertSlots& slots);
// Instead, where products of many rows read all experts, wherever they are: counts the bytes of
// those in no slot.
void CountExpertsRead(CudaStream& stream, const ExpertSlots& slots);

}  // namespace litecache::ops::cuda
