#include "kv/offload/piece_views_cuda.h"

#include <algorithm>
#include <numeric>

#include "kv/offload/recompute.h"
#include "ops/step/send_cuda.h"

namespace litecache::kv::offload {

void PieceViews::Plan(const std::vector<Part>& parts, const Pieces& pieces, const Staging& staging,
                      const std::vector<std::byte* const*>& first_inputs) {
  current_ = 1 - current_;
  Side& side = sides_[current_];
  if (side.room < pieces.total) {
    side.positions.reset();
    side.room = 0;
    // For whatever contexts of these sizes recompute: the share changes with every step.
    int64_t room = kGpuRecomputeUnit;
    for (const Part& part : parts) room += ContextBucket(part.n());
    room = std::max(room, pieces.total);
    side.positions = device_.CreateMirror(static_cast<size_t>(room) * sizeof(int32_t));
    side.room = room;
  }
  side.total = pieces.total;
  side.first_inputs = first_inputs;
  side.longest = 0;
  side.block.Begin(static_cast<int64_t>(pieces.segments.size()), 0);
  auto* positions = side.positions->host<int32_t>();
  std::fill_n(positions, pieces.total, 0);
  for (size_t p = 0; p < pieces.pieces.size(); ++p) {
    const Piece& piece = pieces.pieces[p];
    side.block.flag(static_cast<int64_t>(p)) = static_cast<int32_t>(piece.end - piece.begin);
    for (int64_t s = piece.begin; s < piece.end; ++s) {
      const Segment& segment = pieces.segments[static_cast<size_t>(s)];
      const Part& part = parts[static_cast<size_t>(segment.part)];
      side.longest = std::max(side.longest, part.n());
      auto* own = positions + piece.first_position + segment.first_row;
      std::iota(own, own + segment.count, static_cast<int32_t>(segment.begin));
      ops::cuda::StepSequence& target = side.block.at(s);
      target = {.first_row = static_cast<int32_t>(segment.first_row),
                .rows = static_cast<int32_t>(segment.count),
                .past = static_cast<int32_t>(segment.begin),
                .stored = static_cast<int32_t>(segment.begin)};
      const Staging::Lane& lane = staging.lane(part);
      target.pages[kRows] = lane.rows.table.device();
      target.pages[kStagedInputs] = lane.inputs.table.device();
      target.pages[kFirstInputs] = first_inputs[static_cast<size_t>(segment.part)];
    }
  }
}

void PieceViews::Send(Stream& stream) {
  Side& side = sides_[current_];
  side.block.SendByKernel(stream);
  ops::cuda::SendByKernel(stream, *side.positions,
                          static_cast<size_t>(side.total) * sizeof(int32_t));
}

ops::cuda::StepView PieceViews::View(const Piece& piece, int64_t index) const {
  ops::cuda::StepView view = side().block.Decoding(ContextBucket(side().longest));
  view.sequences += piece.begin;
  view.count = side().block.device_flags() + index;
  view.capacity = static_cast<int32_t>(piece.end - piece.begin);
  view.max_rows = static_cast<int32_t>(piece.rows);
  return view;
}

}  // namespace litecache::kv::offload
