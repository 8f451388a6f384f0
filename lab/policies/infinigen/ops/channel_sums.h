// The magnitude of queries and keys along each direction of a basis, by which InfiniGen chooses its
// channels.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"

namespace litecache::lab::ops {

// sums[j] += sum over the rows of |sum over c of row[c] * basis[c][j]|, j < width. Products in f32,
// sums in double, in an order that depends neither on threads nor on other work.
struct ChannelSumsWork {
  const float* rows = nullptr;  // row i at rows + i * stride, head_dim values
  int64_t stride = 0;
  int64_t count = 0;
  const float* basis = nullptr;  // [head_dim][width]
  double* sums = nullptr;        // [width]; items of one call may share it
};
// width is a multiple of 16.
void AddChannelSums(Stream& stream, int64_t head_dim, int64_t width,
                    std::span<const ChannelSumsWork> work);

}  // namespace litecache::lab::ops
