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

  // Of a step, whose staging has its tables; first_inputs: the pages of each part's inputs of layer
  // 0, on the device. What has been planned before the last call is over.
  void Plan(const std::vector<Part>& parts, const Pieces& pieces, const Staging& staging,
            const std::vector<std::byte* const*>& first_inputs);
  // Whether the last plan's inputs of layer 0 have these pages.
  bool Holds(const std::vector<std::byte* const*>& first_inputs) const {
    return side().first_inputs == first_inputs;
  }
  // Enqueues the copy to the device.
  void Send(Stream& stream);

  // Segments as sequences whose new rows they are.
  ops::cuda::StepView View(const Piece& piece, int64_t index) const;
  // Of its places; 0 where they have no token.
  std::span<const int32_t> Positions(const Piece& piece) const {
    return {side().positions->device<const int32_t>() + piece.first_position,
            static_cast<size_t>(piece.places)};
  }

 private:
  struct Side {
    StepBlock block;  // flags: how many segments each piece has
    std::unique_ptr<Mirror> positions;
    int64_t room = 0;     // of positions
    int64_t total = 0;    // of the plan's
    int64_t longest = 0;  // tokens of a sequence
    std::vector<std::byte* const*> first_inputs;
  };
  const Side& side() const { return sides_[current_]; }

  Device& device_;
  // Two: what was planned last may still be at work when the next step is planned.
  std::array<Side, 2> sides_;
  size_t current_ = 0;
};

}  // namespace litecache::kv::offload
