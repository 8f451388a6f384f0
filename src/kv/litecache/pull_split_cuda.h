#pragma once

// Which SMs are reserved for the pulls of a step: kernels that share an SM with a pull wait for the
// link (lab/notes/gpu/litecache.md, "What a step waits for beside a pull").
#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "device/cuda/sm_split.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// Steps of several sequences split the GPU if their contexts are longer than this (tokens): 16 of
// 8K lose 5 to 10% by it, 6 of 131,000 gain 7%; nothing in between has been measured.
inline constexpr int64_t kLongContext = 65536;

// How a step that prefetches `ahead` layers ahead splits the GPU; null: pulls share all SMs. The
// environment variable LITECACHE_PULL_SMS sets the number of SMs for pulls; 0: no split.
const SmSplit* SplitOfPulls(const CudaDevice& device, const KvOptions& options, int64_t ahead);

// Whether LITECACHE_PULL_SMS demands the split for any number of sequences.
bool PullsAlwaysApart();

}  // namespace litecache::kv
