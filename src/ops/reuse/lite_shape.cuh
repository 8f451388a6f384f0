// kv::Shape's sizes of a sequence of n tokens, for kernels; plain C++ outside nvcc, so that a test
// without a GPU compares the two.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/reuse/litecache_cuda.h"

#ifdef __CUDACC__
#define LC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LC_HOST_DEVICE inline
#endif

namespace litecache::ops::cuda {

LC_HOST_DEVICE int32_t SinkRows(const LiteShape& shape, int32_t n) {
  return n < shape.sink ? n : shape.sink;
}

LC_HOST_DEVICE int32_t RecentBegin(const LiteShape& shape, int32_t n) {
  return n - shape.recent > shape.sink ? n - shape.recent : SinkRows(shape, n);
}

LC_HOST_DEVICE int32_t Candidates(const LiteShape& shape, int32_t n) {
  return RecentBegin(shape, n) - SinkRows(shape, n);
}

// KvBudget::RowsFor, bit for bit: the product is rounded before the subtraction, on the device as
// well, which would make one operation of the two.
LC_HOST_DEVICE int32_t Rows(const LiteShape& shape, int32_t n) {
  if (shape.budget_tokens > 0) return shape.budget_tokens;
  constexpr double kShareRounding = 1e-9;
#ifdef __CUDA_ARCH__
  const double rows = ceil(__dsub_rn(__dmul_rn(shape.budget_share, n), kShareRounding));
#else
  const double rows = std::ceil(shape.budget_share * static_cast<double>(n) - kShareRounding);
#endif
  return rows > 1 ? static_cast<int32_t>(rows) : 1;
}

// Slots for cached rows.
LC_HOST_DEVICE int32_t CacheSlots(const LiteShape& shape, int32_t n) {
  const int32_t candidates = Candidates(shape, n);
  const double slots = std::ceil(static_cast<double>(Rows(shape, n)) * shape.slots_factor);
  return slots < candidates ? static_cast<int32_t>(slots) : candidates;
}

LC_HOST_DEVICE bool AllFit(const LiteShape& shape, int32_t n) {
  return Candidates(shape, n) <= Rows(shape, n);
}

LC_HOST_DEVICE int32_t RingSlots(const LiteShape& shape) { return shape.recent + shape.carry + 1; }

// Slot of a sink or recent token.
LC_HOST_DEVICE int32_t FixedSlot(const LiteShape& shape, int32_t token) {
  return token < shape.sink ? token : shape.sink + token % RingSlots(shape);
}

// First token of the ring that a head attends which was refreshed when the recent window began at
// `refreshed`.
LC_HOST_DEVICE int32_t WindowBegin(const LiteShape& shape, int32_t n, int32_t refreshed) {
  const int32_t oldest = n - shape.recent - shape.carry;
  return oldest > refreshed ? oldest : refreshed;
}

}  // namespace litecache::ops::cuda
