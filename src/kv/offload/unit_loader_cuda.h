// Fills the staging buffers for a step's units: transfers rows and inputs from the host, and
// recomputes rows from those inputs.
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

class UnitLoader {
 public:
  // chunked: Recompute::chunked. Reference arguments must outlive this object, and a plan must
  // outlive its transfers.
  UnitLoader(CudaDevice& device, const Shape& shape, const Tables& tables, const Staging& staging,
             const SequenceTable& store, const SequenceTable& inputs, bool chunked);

  // Plans the transfers of a step; the staging must have its tables. Throws CapacityError.
  void Plan(const StepPlan& plan);
  // Whether the last plan still fits: no table has moved.
  bool Holds(const StepPlan& plan);

  // Call before the first layer: transfers and recomputation from here on wait for the operations
  // enqueued on `main` so far.
  void Start(Stream& main, const StepPlan& plan);
  // The same for a step that has not begun; its transfers wait only for what Wait() names.
  void StartAhead() { link_.StartAhead(); }
  // Transfers from here on wait for `main`, or for a mark of another branch.
  void Fork(Stream& main) { link_.Fork(main); }
  void Wait(CudaBranch& other, int mark) { link_.Wait(other, mark); }

  // Enqueue the transfer of a unit's inputs and rows to its buffer, and the recomputation of rows
  // from the inputs. They do nothing if the step does not have the unit.
  void Load(const StepPlan& plan, int64_t unit);
  void Recompute(const StepPlan& plan, int64_t unit, KeyValueProjection* projection);
  // Recomputes the first units; call after StartAhead() and Load().
  void RecomputeAhead(const StepPlan& plan, KeyValueProjection* projection);

  // Operations enqueued on `stream` from here on see the buffer's rows.
  void Await(Stream& stream, size_t buffer);
  void JoinAll(Stream& main);
  // Waits for the remaining operations of a step that has failed or been dropped.
  void Reset();

 private:
  // The mark that a piece of a unit has arrived. Pieces may share marks.
  static int64_t MarkOfPiece(int64_t piece, int64_t pieces) {
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
