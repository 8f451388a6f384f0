// Policy litecache's sequences on a GPU: what kernels read about each, kept in step with the host's
// page tables.
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
  // Keeps a reference to tiers.
  CudaSequences(CudaDevice& device, Tiers& tiers) : device_(device), tiers_(tiers) {}

  // Creates the device's part of a sequence of the tiers, with empty slots. Throws DeviceError or
  // CapacityError, with nothing changed, if there is no memory for it.
  void Create(SequenceId id);
  // Copies the parent's slots.
  void Fork(SequenceId parent, SequenceId id);
  void Release(SequenceId id) { sequences_.erase(id); }

  // Uploads pages that are new to the device; returns the sequence as kernels read it.
  ops::cuda::StepSequence Follow(const StepSequence& part);

  // Whether the slots are filled: not after a prompt, until its first decode step.
  bool filled(SequenceId id) const { return sequences_.at(id).filled; }
  void set_filled(SequenceId id, bool filled) { sequences_.at(id).filled = filled; }

  // Call where slots have lost pages: as many as before may be others.
  void ForgetSlotPages(SequenceId id) { sequences_.at(id).slot_pages = 0; }

  // Marks sequences as lost because a transfer has failed: their slots may hold wrong rows. Ignores
  // released sequences.
  void MarkLost(std::span<const SequenceId> ids, const std::string& why);
  // Throws DeviceError if a sequence of the step is lost.
  void CheckNoneLost(const Step& step) const;

  // For diagnosis, for an offloaded head, as LiteCache's functions; both synchronize with the
  // device.
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head) const;
  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head) const;

 private:
  struct Sequence {
    DevicePages resident, store, metadata, scales, slots, labels;
    Buffer heads;  // HeadState [offloaded]
    bool filled = false;
    // Forked since its last decode step, which copies the shared pages of its slots.
    bool forked = false;
    int64_t slot_pages = 0;  // slot pages a head that the device has
    std::string lost;        // the error, if it cannot continue
  };

  void Upload(const StepSequence& part, Sequence* sequence);
  // Throws Error for a resident head.
  int64_t OffloadedList(int64_t layer, int64_t head) const;

  CudaDevice& device_;
  Tiers& tiers_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace litecache::kv
