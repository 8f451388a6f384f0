// RetroInfer's segmented spherical k-means over the keys of one (sequence, layer, KV head).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/common/row_format.h"

namespace litecache::lab {

struct KMeansWork {
  ops::PagedRows rows;  // bf16 or f32; keys of the tokens [begin, begin + count)
  int64_t begin = 0, count = 0;
  int64_t clusters = 0;  // a multiple of segments, at most count
  // Of count / segments tokens each; the remainder joins in the last iteration.
  int64_t segments = 1;
  int64_t iterations = 1;  // >= 1
  const std::atomic<bool>* cancel = nullptr;
};

struct KMeansResult {
  std::vector<int32_t> assignment;  // [count]
  std::vector<float> centroids;     // [clusters][head_dim]: means of the keys
  std::vector<int32_t> sizes;       // an empty cluster keeps its centroid
};

// The result of each iteration, for tests: assignments[i] of the i-th iteration, [count] (-1 for
// tokens in no segment).
struct KMeansTrace {
  std::vector<std::vector<int32_t>> assignments;
};

// Keys are centred by their mean over all `count` tokens. The clusters start at evenly strided
// keys. All iterations except the last stay within segments: a token is assigned to its segment's
// centroid with the largest inner product, and centroids become the mean of their tokens,
// normalized to length 1. In the last one every token is assigned to the best of all centroids,
// which become the plain mean of their tokens. Returns false if *cancel became true; the result is
// then invalid.
bool SegmentedKMeans(Stream& stream, const KMeansWork& work, KMeansResult* result,
                     KMeansTrace* trace = nullptr);

}  // namespace litecache::lab
