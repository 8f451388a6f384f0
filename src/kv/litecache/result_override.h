// Replaces the results of a cache's lookups and selections, to measure policy litecache under
// another reuse than that of its queries. An override is set on the plan. Lookups and selections
// still do their work; a cache without an override pays nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "device/device.h"
#include "kv/litecache/head_slots_cpu.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/slots/slot_windows.h"

namespace litecache {
class CudaDevice;
}

namespace litecache::kv {

class CudaResultOverride;  // kv/litecache/result_override_cuda.h

// An offloaded head of a sequence at a decode step.
struct HeadAtStep {
  int64_t index = 0;       // layer * KV heads + head
  int64_t past = 0;        // tokens before this step
  int64_t row = 0;         // the sequence's row of the step's activations
  bool verifying = false;  // the actual query, after a lookup with a predicted one
};

// The selection for a head that missed: positions of [begin, end), ascending.
struct FoundRows {
  HeadAtStep at;
  int64_t begin = 0, end = 0;        // candidates
  const HeadSlots* slots = nullptr;  // with the head's cached rows before the refresh
  int32_t* positions = nullptr;      // room for the most rows that a head selects of these
  int64_t most = 0;
  int64_t count = 0;
};

class ResultOverride {
 public:
  virtual ~ResultOverride() = default;
  // Whether the head hits; `found`: the lookup's result.
  virtual bool Hit(const HeadAtStep& at, bool found) const = 0;
  // Replaces positions by others, ascending, and count by their number, or leaves them. Not called
  // for a sequence's first fill.
  virtual void ReplaceRows(Stream& stream, const SlotGeometry& geometry,
                           std::span<FoundRows> found) const = 0;
  // The same override for a cache on this GPU; the cache keeps it.
  virtual std::unique_ptr<CudaResultOverride> ForCuda(CudaDevice& device) const = 0;
};

// How predicted queries' lookups are checked.
struct PredictionCheck {
  float least_tau = -1;  // KvOptions::prediction_eta
  float margin = 0;      // KvOptions::prediction_margin
};

// An optional interface of policy litecache's CachePlan (dynamic_cast).
class OverridablePlan {
 public:
  virtual ~OverridablePlan() = default;
  virtual const ops::SlotWindows<int64_t>& windows() const = 0;
  virtual ops::Aggregation aggregation() const = 0;
  // Empty: predictions are not checked.
  virtual std::optional<PredictionCheck> prediction_check() const = 0;
  // Applies to caches created afterwards. Null: no override.
  virtual void SetOverride(std::shared_ptr<const ResultOverride> results) = 0;
};

}  // namespace litecache::kv
