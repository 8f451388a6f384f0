// A step's pieces of recomputation as kernels see them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/offload/groups.h"
#include "kv/offload/pieces.h"
#include "kv/offload/staging_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv::offload {

class PieceViews {
 public:
  explicit PieceViews(Device& device)
      : device_(device), sides_{Side{StepBlock(device)}, Side{StepBlock(device)}} {}

  // Plans a step; the staging must have its tables. first_inputs: pages of each part's inputs of
  // layer 0, in device memory. Operations of the plan before the last one must be over.
  void Plan(const std::vector<Part>& parts, const Pieces& pieces, const Staging& staging,
            const std::vector<std::byte* const*>& first_inputs);
  // Whether the last plan's inputs of layer 0 have these pages.
  bool Holds(const std::vector<std::byte* const*>& first_inputs) const {
    return side().first_inputs == first_inputs;
  }
  // Enqueues the copy to the device.
  void Send(Stream& stream);

  // The segments, described as sequences whose new rows they are.
  ops::cuda::StepView View(const Piece& piece, int64_t index) const;
  // Positions of the piece's places; 0 for places without a token.
  std::span<const int32_t> Positions(const Piece& piece) const {
    return {side().positions->device<const int32_t>() + piece.first_position,
            static_cast<size_t>(piece.places)};
  }

 private:
  struct Side {
    StepBlock block;  // flags: the number of segments in each piece
    std::unique_ptr<Mirror> positions;
    int64_t room = 0;     // capacity of positions
    int64_t total = 0;    // number of positions in the plan
    int64_t longest = 0;  // tokens of the longest sequence
    std::vector<std::byte* const*> first_inputs;
  };
  const Side& side() const { return sides_[current_]; }

  Device& device_;
  // Two, because the last plan may still be in use when the next step is planned.
  std::array<Side, 2> sides_;
  size_t current_ = 0;
};

}  // namespace litecache::kv::offload
