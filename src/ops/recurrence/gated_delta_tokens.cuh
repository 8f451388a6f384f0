// The update token by token: tiles of tokens in shared memory, and what a token changes.
#pragma once

#include <cstdint>

#include "ops/common/shared_words.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"
#include "ops/recurrence/gated_delta_parts.cuh"

namespace litecache::ops::cuda {
namespace {

// The lanes that share a column of S. Lane p has its rows (4 i + p) * 4 + [0, 4) for all i: keys
// and queries are then read from shared memory 16 bytes at a time without conflicts. A warp has 8
// columns, whole sectors of global memory.
constexpr int kParts = 4;

// Calls body(i, row, element) for the rows of a lane's part of a column, element i of its
// registers. One address is made from the other: 2 kRows registers would hold them all.
template <int kRows, typename Body>
__device__ inline void ForEachRow(float* column, int32_t pitch, int32_t part, const Body& body) {
  float* element = column + part * 4 * pitch;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    body(i, (i / 4 * kParts + part) * 4 + i % 4, element);
    element += i % 4 == 3 ? (4 * kParts - 3) * pitch : pitch;
  }
}

// What a token multiplies with.
struct alignas(16) TokenFactors {
  float decay, step;
  float key_query;  // the product of key and query
};

// A tile of tokens in shared memory. kPadded: key_dim rounded up, of zeros.
template <int kTokens, int kPadded, int kColumns>
struct alignas(16) Tile {
  float keys[kTokens][kPadded];
  float queries[kTokens][kPadded];
  float values[kTokens][kColumns];
  TokenFactors factors[kTokens];  // when they are copied: rate, step
};

__device__ inline void CopyFloat(float* shared, const float* source) {
  CopyWord(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), source, true);
}

// Starts copies of `count` rows from `row` on. kPrepared: by PrepareKernel.
template <bool kPrepared, typename T>
__device__ void CopyTile(const DeltaArguments& a, T& tile, int32_t row, int32_t count, int32_t head,
                         int32_t column, int32_t columns) {
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t key_head = KeyHead(a, head);
  const int32_t query = key_head * a.key_dim, key = query + a.key_heads * a.key_dim;
  const int32_t value = 2 * a.key_heads * a.key_dim + head * a.value_dim + column;
  const int32_t warp = thread / 32, lane = thread % 32;
  for (int32_t t = warp; t < count; t += threads / 32) {
    const float* source = a.convolved[row + t];
    for (int32_t i = lane; i < a.key_dim; i += 32) {
      CopyFloat(&tile.queries[t][i], source + query + i);
      CopyFloat(&tile.keys[t][i], source + key + i);
    }
    for (int32_t i = lane; i < columns; i += 32) CopyFloat(&tile.values[t][i], source + value + i);
    if (lane == 0) {
      CopyFloat(&tile.factors[t].decay, a.rate[row + t] + head);
      CopyFloat(&tile.factors[t].step, a.step[row + t] + head);
      if constexpr (kPrepared) {
        CopyFloat(&tile.factors[t].key_query, a.scratch[row + t] + key_head);
      }
    }
  }
  CommitCopies();
}

// Normalizes a token's key and query, and returns their product; by one warp.
__device__ inline float NormalizeToken(const DeltaArguments& a, float* key, float* query) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float keys = 0, queries = 0, products = 0;
  for (int32_t i = lane; i < a.key_dim; i += 32) {
    const float k = key[i], q = query[i];
    keys = fmaf(k, k, keys);
    queries = fmaf(q, q, queries);
    products = fmaf(k, q, products);
  }
  const float key_factor = UnitFactor(LaneSum(keys), 1.0f);
  const float query_factor = UnitFactor(LaneSum(queries), a.query_scale);
  for (int32_t i = lane; i < a.key_dim; i += 32) {
    key[i] *= key_factor;
    query[i] *= query_factor;
  }
  return LaneSum(products) * key_factor * query_factor;
}

// A token's change of a lane's part of a column, and the column's output. Both products with S are
// made from the old one, in one pass: S'^T q = decay S^T q + (k . q) delta. kReload: the key is
// read again rather than kept in registers.
template <bool kReload, int kRows>
__device__ inline float UpdateColumn(float (&s)[kRows], const float* key, const float* query,
                                     const TokenFactors& factors, float value) {
  const int part = static_cast<int>(threadIdx.x) % kParts;
  const auto* keys = reinterpret_cast<const float4*>(key) + part;
  const auto* queries = reinterpret_cast<const float4*>(query) + part;
  float4 given = {}, read = {};
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float4 k = keys[i * kParts], q = queries[i * kParts];
    given.x = fmaf(k.x, s[4 * i], given.x);
    given.y = fmaf(k.y, s[4 * i + 1], given.y);
    given.z = fmaf(k.z, s[4 * i + 2], given.z);
    given.w = fmaf(k.w, s[4 * i + 3], given.w);
    read.x = fmaf(q.x, s[4 * i], read.x);
    read.y = fmaf(q.y, s[4 * i + 1], read.y);
    read.z = fmaf(q.z, s[4 * i + 2], read.z);
    read.w = fmaf(q.w, s[4 * i + 3], read.w);
  }
  float gives = (given.x + given.y) + (given.z + given.w);
  float reads = (read.x + read.y) + (read.z + read.w);
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
    gives += __shfl_xor_sync(0xffffffffu, gives, step);
    reads += __shfl_xor_sync(0xffffffffu, reads, step);
  }
  if constexpr (kReload) __syncwarp();
  const float delta = factors.step * fmaf(-factors.decay, gives, value);
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float4 k = keys[i * kParts];
    s[4 * i] = fmaf(k.x, delta, factors.decay * s[4 * i]);
    s[4 * i + 1] = fmaf(k.y, delta, factors.decay * s[4 * i + 1]);
    s[4 * i + 2] = fmaf(k.z, delta, factors.decay * s[4 * i + 2]);
    s[4 * i + 3] = fmaf(k.w, delta, factors.decay * s[4 * i + 3]);
  }
  return fmaf(factors.decay, reads, factors.key_query * delta);
}

}  // namespace
}  // namespace litecache::ops::cuda
