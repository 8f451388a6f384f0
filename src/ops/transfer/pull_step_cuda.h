// The rows of all of a step's layers, brought by one kernel that lives as long as the step's
// attentions: for SMs that nothing else runs on (device/cuda/sm_split.h). Kernels on other SMs tell
// it which lists are ready, and it tells them which layers' rows are there, by flags in device
// memory: the link has no pause between layers, where a kernel a layer has its beginning and end
// (lab/notes/gpu/litecache.md, "One pull a step").
//
// Every flag is the number of a step: nothing is reset between steps or replays of a graph. All
// kernels of a step have to be issued together, as a recording: the one that pulls waits for others
// that come after it.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// What a pull reads of a layer (LiteCacheLayer has what it is).
struct PulledLayer {
  const int32_t* list_in_store = nullptr;  // store.list_of_head; null: the layer is not pulled
  const int32_t* list_in_slots = nullptr;
  const int32_t* refresh = nullptr;
  const int32_t* moved_count = nullptr;
  const int32_t* moved_positions = nullptr;
  const int32_t* moved_slots = nullptr;
};
PulledLayer PulledOf(const LiteCacheLayer& layer);

// A wait that passed its deadline.
struct PullFault {
  uint64_t set = 0;  // written last
  uint64_t layer = 0;
  uint64_t for_list = 0;  // 1: the pull waited for the layer's list, 0: a kernel for its rows
  uint64_t seen = 0;      // value of the flag
  uint64_t number = 0;    // of the step: what the flag should have been
};

// Flags of a layer, of each kind: a cache line. At most as many blocks pull.
inline constexpr int32_t kLayerFlags = 32;

struct PullStep {
  const PulledLayer* layers = nullptr;  // device, [count]
  int32_t count = 0;
  int32_t blocks = 0;                // that pull, of one SM each
  const uint32_t* number = nullptr;  // device: the step's; not 0
  // Device, [count][kLayerFlags], zeros at first.
  uint32_t* listed = nullptr;   // [0]: the lists are ready; [1]: there are none in this step
  uint32_t* arrived = nullptr;  // [block]: its rows are in their slots
  // Device, zero at first: of a step with a fault. Its waits have ended.
  uint32_t* stopped = nullptr;
  PullFault* fault = nullptr;  // mapped host memory
  uint64_t deadline_ns = 0;    // of each wait
};

// Blocks that pull on a stream with so many SMs.
int32_t PullStepBlocks(const Stream& stream);
// As PullRows, of all layers from `first` on, each once it has been listed. any: one of the layers.
void PullStepRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& any, const PullStep& pull, int64_t first);
// The layer's lists are what the stream's kernels have left; none: nothing is to be pulled.
void TellListed(Stream& stream, const PullStep& pull, int64_t layer, bool none);
// What the stream is given from here on finds the layer's rows in their slots.
void AwaitArrival(Stream& stream, const PullStep& pull, int64_t layer);

}  // namespace litecache::ops::cuda
