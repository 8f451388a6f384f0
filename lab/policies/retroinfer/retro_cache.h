// The caches of policy `retroinfer`, without their parts.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "kv/cache.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/shape.h"

namespace litecache::lab {

// Throws Unsupported for a model that caps scores: estimates of rows do not.
inline void RefuseCap(const ops::Softmax& softmax) {
  if (softmax.cap == 0) return;
  throw Unsupported(
      "KV policy retroinfer: its estimates of rows do not cap scores, as this model does; use "
      "another policy");
}

// Device memory for up to `sequences` sequences of up to `tokens` tokens, besides the tiers.
uint64_t CudaRetroScratchBytes(const RetroShape& shape, int64_t sequences, int64_t tokens);

// forced: null, or the clusters to select.
std::unique_ptr<Cache> CreateCpuRetroCache(Device& device, const RetroShape& shape,
                                           const TierBytes& budget,
                                           std::shared_ptr<const ForcedSelection> forced);
// device: a CudaDevice; shape: for a GPU. forced: null, or the clusters to select.
std::unique_ptr<Cache> CreateCudaRetroCache(Device& device, const RetroShape& shape,
                                            const TierBytes& budget, const ForcedSelection* forced);

}  // namespace litecache::lab
