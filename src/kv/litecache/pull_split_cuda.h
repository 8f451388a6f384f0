#pragma once

// Which SMs the pulls of a step have to themselves: kernels that share theirs wait for the link
// (lab/notes/gpu/litecache.md, "What a step waits for beside a pull").
#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "device/cuda/sm_split.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// Steps of several sequences split the GPU where their contexts are longer than this (tokens):
// 16 of 8K lose 5 to 10% by it, 6 of 131,000 gain 7%; between these nothing has been measured.
inline constexpr int64_t kLongContext = 65536;

// How a step that asks for rows `ahead` layers ahead splits the GPU; null: pulls share all SMs.
// The environment's LITECACHE_PULL_SMS says how many SMs pulls have; 0: none of their own.
const SmSplit* SplitOfPulls(const CudaDevice& device, const KvOptions& options, int64_t ahead);

// Whether LITECACHE_PULL_SMS asks for the split beside any number of sequences.
bool PullsAlwaysApart();

}  // namespace litecache::kv
