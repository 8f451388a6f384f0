// K-means over keys in place: one assignment of the points, and one update of the centroids. Each
// index iterates over them in its own way (RetroInfer's segmented spherical k-means, Lloyd's
// algorithm for product quantization).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/common/row_format.h"

namespace litecache::lab::ops {

// Points [begin, begin + count) of one (sequence, layer, KV head): `channels` elements of a token's
// K starting at `channel`, minus `center` [channels] unless it is null. Rows of bf16 or f32.
struct KeyPoints {
  PagedRows rows;
  int64_t begin = 0, count = 0;
  int64_t channel = 0, channels = 0;
  const float* center = nullptr;
};

// assignment[i] = first + the c that maximizes point i . centroids[c] + bias[c], c < clusters; ties
// go to the lowest. Products and sums in f32. bias null: the largest inner product (spherical
// k-means); bias[c] = -|centroids[c]|^2 / 2: the nearest centroid.
struct AssignWork {
  KeyPoints points;
  const float* centroids = nullptr;  // [clusters][channels]
  const float* bias = nullptr;       // [clusters] or null
  int64_t clusters = 0;              // >= 1
  int32_t first = 0;
  int32_t* assignment = nullptr;  // [count]
};
void AssignToCentroids(Stream& stream, std::span<const AssignWork> work);

// sizes[c] = number of points assigned to first + c, centroids[c] = their mean, normalized to
// length 1 if `normalize` (a mean of 0 stays 0). A centroid without points keeps its value.
struct CentroidWork {
  KeyPoints points;
  const int32_t* assignment = nullptr;  // [count], each in [first, first + clusters)
  int64_t clusters = 0;
  int32_t first = 0;
  bool normalize = false;
  float* centroids = nullptr;  // [clusters][channels]
  int32_t* sizes = nullptr;    // [clusters]
};
void UpdateCentroids(Stream& stream, std::span<const CentroidWork> work);

}  // namespace litecache::lab::ops
