// The CPU's handling of a GPU step's selection: updates the LRU order of a block cache, and lists
// what the device is to copy and to evict. For one (sequence, KV head) of a layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "lab/policies/retroinfer/wave_sequence.h"

namespace litecache::lab {

struct WaveUpdate {
  WaveSequence* sequence = nullptr;
  int64_t list = 0;
  std::span<const int32_t> retrieved;  // clusters, the best first

  // ---- results ----
  std::vector<int32_t> hits, misses, miss_blocks;
  uint64_t rows = 0, miss_rows = 0;
  std::vector<ops::cuda::WaveAdmission> items;
  std::vector<int32_t> links_begin, links;

  // Misses are in the execution buffer in the order of `retrieved`, each starting with a new block.
  void Run(int64_t block_tokens);

 private:
  std::vector<int32_t> dropped_;
};

}  // namespace litecache::lab
