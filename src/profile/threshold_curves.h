// The attention mass and the hit ratio under a reuse threshold: QSAC simulated on recorded queries
// and keys.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "litecache/kv_options.h"
#include "ops/reuse/qsac_lookup.h"

namespace litecache::profile {

// 24 thresholds from -1 (every lookup hits) to 1 (none does), denser towards 1, where the cosines
// of adjacent queries are.
std::vector<float> DefaultThresholds();

struct CurveOptions {
  KvBudget budget;
  int64_t sink_tokens = 4;
  int64_t recent_tokens = 64;
  ops::Aggregation aggregation = ops::Aggregation::kImportance;
  std::vector<float> thresholds = DefaultThresholds();  // ascending
};

// One KV head's part of a recording: consecutive decode steps at the end of n tokens.
struct HeadRecording {
  int64_t group = 0;  // m query heads
  int64_t head_dim = 0;
  int64_t tokens = 0;                 // n
  int64_t steps = 0;                  // step t is the token at position n - steps + t
  float scale = 0;                    // factor of q.k
  const float* keys = nullptr;        // [n][head_dim]
  const float* actual = nullptr;      // queries attended with [steps][m][head_dim]
  const float* lookup = nullptr;      // queries for lookups and retrieval; equal to actual where
                                      // they are not predicted
  const float* importance = nullptr;  // [m]
};

// The part of a step that is independent of thresholds.
struct StepRange {
  int64_t begin = 0, end = 0;  // candidates: neither sink nor recent rows
  int64_t visible = 0;         // rows the query may attend
  int64_t k = 0;               // rows that a retrieval selects
};
StepRange RangeOf(const HeadRecording& head, const CurveOptions& options, int64_t step);

// Sums over the steps of one or several recordings.
struct HeadCurve {
  std::vector<double> kept;  // [thresholds] attention mass attended over what it would be had the
                             // step's actual query retrieved the exact top-k, mean over the group
  std::vector<double> hits;  // [thresholds]
  int64_t lookups = 0;
};

// The rows that steps should retrieve, for recall and figures: the actual queries' exact top-k.
using StepSets = std::vector<std::vector<int32_t>>;  // [steps] ascending positions

// Simulates only the decisions: for each threshold and step, the step whose rows are held.
// [thresholds][steps]; held[g][t] == t means a refresh. Step 0 fills the cache, as a prompt's end
// does.
std::vector<std::vector<int32_t>> SimulateLookups(const HeadRecording& head,
                                                  const CurveOptions& options);

// Adds the head's steps from 1 on to the curve. A step always attends its sink and recent rows in
// addition to the rows it holds; candidates and budget at step t are those of its own position, as
// in the engine. Rows that leave the recent window between two refreshes are not attended. sets:
// the exact top-k of each step, unless null.
void AddThresholdCurve(Stream& stream, const HeadRecording& head, const CurveOptions& options,
                       HeadCurve* curve, StepSets* sets);

}  // namespace litecache::profile
