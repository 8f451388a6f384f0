#include "kv/offload/unit_loader_cuda.h"

#include "base/error.h"

namespace litecache::kv::offload {

UnitLoader::UnitLoader(CudaDevice& device, const Shape& shape, const Tables& tables,
                       const Staging& staging, const SequenceTable& store,
                       const SequenceTable& inputs, bool chunked)
    : shape_(shape),
      chunked_(chunked),
      staging_(staging),
      views_(device),
      link_(device, shape, tables, staging, store, inputs),
      recomputing_(device, shape, tables) {}

void UnitLoader::Plan(const StepPlan& plan) {
  link_.Plan(plan.parts, plan.groups, plan.store_pages);
  if (plan.pieces.empty()) return;
  views_.Plan(plan.parts, plan.pieces, staging_, plan.first_input_pages);
  recomputing_.Prepare();
}

bool UnitLoader::Holds(const StepPlan& plan) {
  return link_.Holds(plan.parts, plan.groups, plan.store_pages) &&
         (plan.pieces.empty() || views_.Holds(plan.first_input_pages));
}

void UnitLoader::Start(Stream& main, const StepPlan& plan) {
  if (!plan.pieces.empty()) views_.Send(main);
  recomputing_.Fork(main);
  link_.Start(main);
}

void UnitLoader::Load(const StepPlan& plan, int64_t unit) {
  if (unit >= plan.Units(shape_.layout.layers)) return;
  const int64_t layer = plan.LayerOf(unit);
  const size_t group = plan.GroupOf(unit), buffer = plan.BufferOf(unit);
  const int64_t first = plan.pieces.first_piece[group];
  const int64_t pieces = plan.pieces.first_piece[group + 1] - first;
  // Inputs first, so that recomputation starts early.
  for (int64_t p = 0; p < pieces; ++p) {
    const Piece& piece = plan.pieces.pieces[static_cast<size_t>(first + p)];
    // Layer 0's inputs are on the device already.
    for (int64_t s = piece.begin; layer > 0 && s < piece.end; ++s) {
      const Segment& segment = plan.pieces.segments[static_cast<size_t>(s)];
      link_.LoadInputs(layer, buffer, plan.parts[static_cast<size_t>(segment.part)], segment);
    }
    const int64_t arrival = MarkOfPiece(p, pieces);
    if (p + 1 == pieces || (chunked_ && MarkOfPiece(p + 1, pieces) != arrival)) {
      link_.EndPiece(buffer, arrival);
    }
  }
  link_.LoadRows(layer, buffer, plan.parts, plan.groups, group);
}

void UnitLoader::Recompute(const StepPlan& plan, int64_t unit, KeyValueProjection* projection) {
  if (unit >= plan.Units(shape_.layout.layers)) return;
  const int64_t layer = plan.LayerOf(unit);
  const size_t group = plan.GroupOf(unit), buffer = plan.BufferOf(unit);
  const int64_t first = plan.pieces.first_piece[group];
  const int64_t pieces = plan.pieces.first_piece[group + 1] - first;
  if (pieces == 0) return;
  LC_CHECK(projection != nullptr, "rows are recomputed without a projection");
  for (int64_t p = 0; p < pieces; ++p) {
    link_.WaitForPiece(recomputing_.stream(), buffer,
                       MarkOfPiece(chunked_ ? p : pieces - 1, pieces));
    const Piece& piece = plan.pieces.pieces[static_cast<size_t>(first + p)];
    recomputing_.Recompute(layer, buffer, views_.View(piece, first + p), views_.Positions(piece),
                           *projection);
  }
  recomputing_.Mark(buffer);
}

void UnitLoader::RecomputeAhead(const StepPlan& plan, KeyValueProjection* projection) {
  if (plan.pieces.empty()) return;
  recomputing_.StartAhead([&](Stream& stream) { views_.Send(stream); });
  for (int64_t unit = 0; unit < static_cast<int64_t>(kBuffers); ++unit) {
    Recompute(plan, unit, projection);
  }
}

void UnitLoader::Await(Stream& stream, size_t buffer) {
  link_.WaitForRows(stream, buffer);
  recomputing_.Join(stream, buffer);
}

void UnitLoader::JoinAll(Stream& main) {
  recomputing_.JoinAll(main);
  link_.JoinAll(main);
}

void UnitLoader::Reset() {
  link_.Reset();
  recomputing_.Reset();
}

}  // namespace litecache::kv::offload
