// QSAC's lookup fused with the label update (LiteCache eq. 2; CLO section 5).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"

namespace litecache::ops {

// How the similarities of a group's query heads are combined.
enum class Aggregation : uint8_t {
  kImportance,  // importance-weighted harmonic mean (eq. 2)
  kHarmonic,    // all weights 1
  kMean,
  kMin,
};

// One KV head of one sequence. q, label [m][head_dim] f32 contiguous; importance [m] >= 0.
// similarity = aggregate of cos(q_j, label_j) (the cosine of a zero vector is 0). Harmonic means:
// a similarity <= 0 with a positive weight is a miss, reported as its smallest value; all weights
// zero: the plain harmonic mean. hit = similarity > tau; on a miss label := q.
struct LookupWork {
  const float* q = nullptr;
  float* label = nullptr;
  const float* importance = nullptr;
  float tau = 0;
  // Results.
  float similarity = 0;
  bool hit = false;
};

void QsacLookup(Stream& stream, int64_t group, int64_t head_dim, Aggregation aggregation,
                std::span<LookupWork> work);

// Only the aggregate, of similarities [m]; used by profiling and tests, too.
float AggregateSimilarity(Aggregation aggregation, std::span<const float> similarities,
                          const float* importance);

}  // namespace litecache::ops
