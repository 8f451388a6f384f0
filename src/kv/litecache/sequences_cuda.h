// Policy litecache's sequences on a GPU: what kernels read of each, which follows the host's tables
// of pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/litecache/tiers.h"
#include "kv/pages/device_pages_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv {

class CudaSequences {
 public:
  // tiers: kept.
  CudaSequences(CudaDevice& device, Tiers& tiers) : device_(device), tiers_(tiers) {}

  // The device's part of a sequence that the tiers have, without any rows in its slots. Throws
  // DeviceError or CapacityError, having left nothing, where there is no memory for it.
  void Create(SequenceId id);
  // With its parent's slots.
  void Fork(SequenceId parent, SequenceId id);
  void Release(SequenceId id) { sequences_.erase(id); }

  // Of a step: uploads the pages that are new to the device, and says what kernels are to be told.
  ops::cuda::StepSequence Follow(const StepSequence& part);

  // Whether the slots hold what belongs there: not after a prompt, until they are filled.
  bool filled(SequenceId id) const { return sequences_.at(id).filled; }
  void set_filled(SequenceId id, bool filled) { sequences_.at(id).filled = filled; }

  // A transfer of theirs has failed: their slots hold what they should not. Those that are gone
  // already do not matter.
  void Lose(std::span<const SequenceId> ids, const std::string& why);
  // Throws DeviceError where a sequence of the step has been lost.
  void CheckNoneLost(const Step& step) const;

  // For diagnosis, of an offloaded head; they wait for the device. As LiteCache's.
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head) const;
  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head) const;

 private:
  struct Sequence {
    DevicePages resident, store, metadata, scales, slots, labels;
    Buffer heads;  // HeadState [offloaded]
    bool filled = false;
    // Forked since its last decode step, which copies the slots' pages that it shares.
    bool forked = false;
    int64_t slot_pages = 0;  // that the device knows
    std::string lost;        // why it cannot go on
  };

  void Upload(const StepSequence& part, Sequence* sequence);
  // Throws Error for a resident head.
  int64_t OffloadedList(int64_t layer, int64_t head) const;

  CudaDevice& device_;
  Tiers& tiers_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace litecache::kv
