// Transfers the rows of all of a step's layers by one kernel that runs as long as the step's
// attentions, on SMs reserved for it (device/cuda/sm_split.h). Flags in device memory connect it
// with kernels on other SMs, which signal when lists are ready and wait for layers' rows: this way
// the link has no pause between layers; with one kernel per layer, each start and end would be one
// (lab/notes/gpu/litecache.md, "One pull a step").
//
// Every flag is the number of a step: nothing is reset between steps or replays of a graph. All
// kernels of a step must be issued together, as a recording, because the pulling kernel waits for
// kernels that come after it.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// What a pull reads of a layer (a subset of LiteCacheLayer).
struct PulledLayer {
  const int32_t* list_in_store = nullptr;  // store.list_of_head; null: the layer is not pulled
  const int32_t* list_in_slots = nullptr;
  const int32_t* refresh = nullptr;
  const int32_t* moved_count = nullptr;
  const int32_t* moved_positions = nullptr;
  const int32_t* moved_slots = nullptr;
};
PulledLayer PulledOf(const LiteCacheLayer& layer);

// A wait that exceeded its deadline.
struct PullFault {
  uint64_t set = 0;  // written last
  uint64_t layer = 0;
  uint64_t for_list = 0;  // 1: the pull waited for the layer's list, 0: a kernel for its rows
  uint64_t seen = 0;      // value of the flag at that time
  uint64_t number = 0;    // number of the step, which the flag should have had
};

// Flags of a layer, of each kind: one cache line. At most this many blocks pull.
inline constexpr int32_t kLayerFlags = 32;

struct PullStep {
  const PulledLayer* layers = nullptr;  // device, [count]
  int32_t count = 0;
  int32_t blocks = 0;                // number of blocks that pull, one SM each
  const uint32_t* number = nullptr;  // device: the step's number; not 0
  // Device memory, [count][kLayerFlags], initially zero.
  uint32_t* listed = nullptr;   // [0]: the lists are ready; [1]: there are none in this step
  uint32_t* arrived = nullptr;  // [block]: its rows are in their slots
  // Device memory, initially zero: the number of a step with a fault, whose waits have ended.
  uint32_t* stopped = nullptr;
  PullFault* fault = nullptr;  // mapped host memory
  uint64_t deadline_ns = 0;    // of each wait
};

// How many blocks pull on a stream with this stream's number of SMs.
int32_t PullStepBlocks(const Stream& stream);
// As PullRows, for all layers from `first` on, each once it has been listed. any: one of the
// layers.
void PullStepRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& any, const PullStep& pull, int64_t first);
// Signals that the layer's lists are complete after the stream's operations so far; none: there is
// nothing to pull.
void TellListed(Stream& stream, const PullStep& pull, int64_t layer, bool none);
// Operations enqueued on the stream from here on see the layer's rows in their slots.
void AwaitArrival(Stream& stream, const PullStep& pull, int64_t layer);

}  // namespace litecache::ops::cuda
