// The share of the exact top-k that an approximate score finds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "profile/threshold_curves.h"

namespace litecache::profile {

// Sum over steps of the found share of the exact top-k, and the number of steps.
struct Recall {
  double sum = 0;
  int64_t steps = 0;

  double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
};

// A head's steps with known exact top-k (every `stride`-th is scored).
struct RecallWork {
  const HeadRecording& head;
  const CurveOptions& options;
  const StepSets& exact;
  int64_t stride = 8;
};

// HATA's score: (m - 2 H / bits) |k|, or -H without norms; H: differing bits over the group.
// weights [d][bits].
void AddHataRecall(Stream& stream, const RecallWork& work, std::span<const float> weights,
                   int64_t bits, bool norms, Recall* recall);

// Loki's score: the sum over the group of softmax over the candidates of the products of the first
// `rank` components. basis [d][d].
void AddLokiRecall(Stream& stream, const RecallWork& work, std::span<const float> basis,
                   int64_t rank, Recall* recall);

}  // namespace litecache::profile
