// A step's units on their way to the buffers: what comes from the host, and rows recomputed of
// the inputs among it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/offload/host_link_cuda.h"
#include "kv/offload/piece_views_cuda.h"
#include "kv/offload/recompute.h"
#include "kv/offload/recompute_lanes_cuda.h"
#include "kv/offload/shape.h"
#include "kv/offload/staging_cuda.h"
#include "kv/offload/step_plan_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/pages/sequence_table.h"

namespace litecache::kv::offload {

class Arrivals {
 public:
  // chunked: Recompute::chunked. What is given as a reference must outlive it, as must a plan that
  // is at work.
  Arrivals(CudaDevice& device, const Shape& shape, const Tables& tables, const Staging& staging,
           const SequenceTable& store, const SequenceTable& inputs, bool chunked);

  // Of a step, whose staging has its tables. Throws CapacityError.
  void Plan(const StepPlan& plan);
  // Whether it would be as the last one: no table has moved.
  bool Holds(const StepPlan& plan);

  // Before the first layer: what is brought and recomputed from here on waits for what `main` has
  // been given so far.
  void Start(Stream& main, const StepPlan& plan);
  // The same for a step that has not begun, which waits for what Wait() names.
  void StartAhead() { link_.StartAhead(); }
  // What is brought from here on waits for `main`; for a mark of another branch.
  void Fork(Stream& main) { link_.Fork(main); }
  void Wait(CudaBranch& other, int mark) { link_.Wait(other, mark); }

  // Enqueues what brings a unit's inputs and rows to its buffer, and what makes rows of the inputs.
  // Nothing where the step does not have the unit.
  void Bring(const StepPlan& plan, int64_t unit);
  void Recompute(const StepPlan& plan, int64_t unit, KeyValueProjection* projection);
  // Of the first units, after StartAhead() and Bring().
  void RecomputeAhead(const StepPlan& plan, KeyValueProjection* projection);

  // What `stream` is given from here on finds the buffer's rows in place.
  void Await(Stream& stream, size_t buffer);
  void JoinAll(Stream& main);
  // Waits for the rest of a step that has failed, or that does not come.
  void Reset();

 private:
  // Of a unit's pieces: the mark that says it has arrived. Many pieces share marks.
  static int64_t ArrivalOf(int64_t piece, int64_t pieces) {
    constexpr int64_t kMost = HostLink::kMaxPieces;
    return pieces <= kMost ? piece : piece * kMost / pieces;
  }

  Shape shape_;
  bool chunked_;
  const Staging& staging_;
  PieceViews views_;
  HostLink link_;
  RecomputeLanes recomputing_;
};

}  // namespace litecache::kv::offload
