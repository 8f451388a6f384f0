// RetroInfer's segmented spherical k-means over the keys of one (sequence, layer, KV head).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

struct KMeansWork {
  ops::PagedRows rows;  // bf16 or f32; keys of the tokens [begin, begin + count)
  int64_t begin = 0, count = 0;
  int64_t clusters = 0;    // a multiple of segments, at most count
  int64_t segments = 1;    // of count / segments tokens each; what is left over joins at the end
  int64_t iterations = 1;  // >= 1
  const std::atomic<bool>* cancel = nullptr;
};

struct KMeansResult {
  std::vector<int32_t> assignment;  // [count]
  std::vector<float> centroids;     // [clusters][head_dim]: means of the keys
  std::vector<int32_t> sizes;       // [clusters]; an empty cluster has the centroid it had
};

// What each iteration came to, for tests: assignments[i] of the i-th iteration, [count] (of tokens
// that are in no segment -1).
struct KMeansTrace {
  std::vector<std::vector<int32_t>> assignments;
};

// Keys are centred by their mean over all `count` tokens. The clusters start at evenly strided
// keys. All iterations but the last stay in their segment: a token goes to the segment's centroid
// with the largest inner product, and centroids become their tokens' mean, of length 1. In the last
// one every token goes to the best of all centroids, and they become their tokens' plain mean.
// False when *cancel became true: then the result is void.
bool SegmentedKMeans(Stream& stream, const KMeansWork& work, KMeansResult* result,
                     KMeansTrace* trace = nullptr);

}  // namespace litecache::kv
