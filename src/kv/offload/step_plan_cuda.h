// The decisions about a step on a GPU, made before it takes memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/offload/groups.h"
#include "kv/offload/pieces.h"
#include "kv/offload/tables_cuda.h"

namespace litecache::kv::offload {

// The step's sequences pass through each layer in groups. Unit u of a step is group u % groups of
// layer u / groups. Units use the buffers in turn.
struct StepPlan {
  std::vector<Part> parts;
  std::vector<Group> groups;
  Pieces pieces;
  // Pages of each part, in device memory.
  std::vector<std::byte*const*> store_pages, first_input_pages;
  size_t first_buffer = 0;  // unit 0's

  int64_t LayerOf(int64_t unit) const { return unit / static_cast<int64_t>(groups.size()); }
  size_t GroupOf(int64_t unit) const { return static_cast<size_t>(unit) % groups.size(); }
  size_t BufferOf(int64_t unit) const {
    return (first_buffer + static_cast<size_t>(unit)) % kBuffers;
  }
  int64_t Units(int64_t layers) const { return layers * static_cast<int64_t>(groups.size()); }
};

}  // namespace litecache::kv::offload
