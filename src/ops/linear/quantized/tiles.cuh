// A warp's product of one chunk of packed blocks (packed_layout.h: 16 rows, 256 columns) and up to
// 8 rows of x, on tensor cores: integers of up to 8 bits are exact in bf16, so a group's product
// is that of its integers, and is multiplied by the group's scale in f32.
//
// An integer n of up to 6 bits becomes the bf16 number 128 + n by setting bits. Layouts with a
// minimum take the 128 from the minimum, which is multiplied by the sum of the group's x anyway:
// this costs four of an f32's bits, but no instruction for each pair of integers. Others subtract
// 128 and their offset, exactly.
//
// A tensor core multiplies 8 rows of x, and scaling the products of every group takes more
// instructions than making them. With fewer rows the other columns of the product serve other
// groups: column r * kGroups + h has the products of row r with each group of remainder h, for
// which x is zero in all other groups. So the sums of 8 groups and one row are multiplied by
// their scales by 32 lanes at once.
//
// The order of a row's sum is the same in all cases: within a group, the tensor core's; in one
// chain, the groups of the pairs with the same remainder of 4; these four sums as (0 + 1) + (2 +
// 3); and the chunks of a warp.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/common/tensor_core.cuh"
#include "ops/linear/quantized/integers.cuh"
#include "ops/linear/quantized/scales.cuh"

namespace litecache::ops::cuda::quantized {

template <int kLayout, int kRowsOfX>
struct ChunkShape {
  static constexpr PackedLayout kPacked = kPackedLayouts[kLayout];
  static constexpr int kRows = kRowsOfX;                 // 1, 2, 4 or 8
  static constexpr int kBytes = kPacked.Bytes();         // of a chunk
  static constexpr int kPairs = kPacked.Pairs();         // of groups in a chunk
  static constexpr int kGroups = 8 / kRows;              // in a set: those of one product
  static constexpr int kSets = 2 * kPairs / kGroups;     // in a chunk
  static constexpr int kColumns = kGroups == 1 ? 2 : 1;  // rows of x that a lane sums
  static constexpr int kChains = kGroups == 8 ? 1 : kGroups == 4 ? 2 : 4;  // of sums, of a lane
  static constexpr int kTileSums = 16 * kRows;                             // of a warp, in a tile
  static constexpr int kRecordBytes = kPacked.RecordBytes();
  static constexpr int kRecordWords =
      kGroups == 1 ? kPairs * kRecordBytes / 4 : kSets * (kRecordBytes == 8 ? 2 : 1);

  // The pair of groups that a lane scales in a set.
  __device__ static int PairOf(int set, int q) {
    return kGroups == 1 ? set / 2 : (set * kGroups + 2 * q % kGroups) / 2;
  }
  // The row of x that a lane sums, if it is one.
  __device__ static int RowOf(int q) { return 2 * q / kGroups; }
};

// x as the tensor cores' second operand: lane 4g + q has column g of the product.
template <typename Shape>
struct ChunkInputs {
  uint32_t words[kChunkSteps][4];

  // x: the chunk's columns of the first row, in shared memory in the order of StoreX.
  __device__ __forceinline__ void Load(const uint8_t* x, int pitch, int lane) {
    const int g = lane / 4, q = lane % 4;
    constexpr int kGroups = Shape::kGroups;
    const uint8_t* const row = x + g / kGroups * pitch + q * 16;
#pragma unroll
    for (int step = 0; step < kChunkSteps; ++step) {
      const uint4 in = *reinterpret_cast<const uint4*>(row + step * 64);
      const bool first = Shape::kPacked.group == 32 ? step % kGroups == g % kGroups
                                                    : step * 2 % kGroups == g % kGroups;
      const bool second =
          Shape::kPacked.group == 32 ? first : (step * 2 + 1) % kGroups == g % kGroups;
      words[step][0] = first ? in.x : 0;
      words[step][1] = first ? in.y : 0;
      words[step][2] = second ? in.z : 0;
      words[step][3] = second ? in.w : 0;
    }
  }
};

// A lane's words of a chunk.
template <typename Shape>
struct ChunkWords {
  static constexpr int kBits = Shape::kPacked.bits, kHighBits = Shape::kPacked.high_bits;
  uint32_t first[kBits * 4];
  uint32_t second[kHighBits > 0 ? kHighBits * 4 : 1];
  uint32_t records[2][Shape::kRecordWords];  // of rows g and g + 8
  uint32_t scales[2];

  __device__ __forceinline__ void Load(const uint8_t* chunk, int lane) {
    const int g = lane / 4, q = lane % 4;
    constexpr int kRecordsAt = Shape::kPacked.RecordsAt();
    constexpr int kScalesAt = Shape::kPacked.ScalesAt();
    constexpr int kRowBytes = Shape::kPairs * Shape::kRecordBytes;
    LoadPlane(first, chunk, lane);
    if constexpr (kHighBits > 0) LoadPlane(second, chunk + Shape::kPacked.HighAt(), lane);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const uint8_t* const row = chunk + kRecordsAt + (g + upper * 8) * kRowBytes;
      if constexpr (Shape::kGroups == 1) {
        LoadWords<Shape::kRecordWords>(row, records[upper]);
      } else {
#pragma unroll
        for (int set = 0; set < Shape::kSets; ++set) {
          const uint8_t* const at = row + Shape::PairOf(set, q) * Shape::kRecordBytes;
          if constexpr (Shape::kRecordBytes == 2) {
            records[upper][set] = *reinterpret_cast<const uint16_t*>(at);
          } else {
            LoadWords<Shape::kRecordBytes / 4>(at, records[upper] + set * Shape::kRecordBytes / 4);
          }
        }
      }
      if constexpr (Shape::kPacked.super) {
        const uint8_t* const at = chunk + kScalesAt + (g + upper * 8) * kScaleBytes;
        scales[upper] = kScaleBytes == 4 ? *reinterpret_cast<const uint32_t*>(at)
                                         : *reinterpret_cast<const uint16_t*>(at);
      }
    }
  }

  // The tensor core's operands for one 16 of a step.
  __device__ __forceinline__ void Integers(int step, int half, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = Pair(step, half, i % 2, i / 2);
  }

  // The record of the lane's pair of groups in a set.
  __device__ __forceinline__ uint2 Record(int set, int upper) const {
    constexpr int kBytes = Shape::kRecordBytes;
    const uint32_t(&words)[Shape::kRecordWords] = records[upper];
    const int at = Shape::kGroups == 1 ? set / 2 : set;
    if constexpr (kBytes == 8) {
      return {words[2 * at], words[2 * at + 1]};
    } else if constexpr (kBytes == 4 || Shape::kGroups > 1) {
      return {words[at], 0};
    } else {
      return {words[at / 2] >> (at % 2 * 16), 0};
    }
  }

 private:
  static constexpr int kScaleBytes = Shape::kPacked.ScaleBytes();

  template <int kWords>
  __device__ static void LoadPlane(uint32_t (&to)[kWords], const uint8_t* plane, int lane) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) LoadWords<4>(plane + i * 512 + lane * 16, to + i * 4);
  }

  // Two integers of row g (upper = 0) or g + 8: columns 4q and 4q + 1, or those after them.
  __device__ __forceinline__ uint32_t Pair(int step, int half, int upper, int odd) const {
    if constexpr (kBits == 8) {
      return SignedIntegers(first, step, half, upper, odd);
    } else if constexpr (Shape::kPacked.fp4) {
      return DoubledFp4s(first, step, half, upper, odd);
    } else {
      const uint32_t pair = RaisedIntegers<Shape::kPacked>(first, second, step, half, upper, odd);
      if constexpr (Shape::kPacked.minimum) return pair;
      return AsWord(__hsub2(AsPair(pair), AsPair(kRaisedBy<Shape::kPacked>)));
    }
  }
};

// The products of a chunk: sums of rows g and g + 8 of the weights (upper) with the lane's rows of
// x. Every lane of a column of lanes that share a row of x has the sum.
template <typename Shape>
struct ChunkSums {
  float at[2][Shape::kColumns];

  // x_sums: sums of the chunk's groups of x, in shared memory; as in StoreX, from the lane's
  // rows of x on.
  __device__ __forceinline__ void Multiply(const ChunkWords<Shape>& words,
                                           const ChunkInputs<Shape>& x, const float* x_sums,
                                           int lane) {
    float chains[Shape::kChains][2][Shape::kColumns] = {};
    const RowScales<Shape> scales[2] = {RowScales<Shape>(words.scales[0]),
                                        RowScales<Shape>(words.scales[1])};
#pragma unroll
    for (int set = 0; set < Shape::kSets; ++set) {
      float products[4] = {};
      MultiplySet(words, x, set, products);
      if constexpr (Shape::kGroups == 1) {
        ScaleGroup(words, scales, x_sums, set, products, chains[set / 2 % 4]);
      } else {
        ScalePair(words, scales, x_sums, set, lane, products, chains[set % Shape::kChains]);
      }
    }
    AddChains(chains);
  }

 private:
  static constexpr bool kMinimum = Shape::kPacked.minimum;

  // products += the integers' products of a set of groups. With many groups there are two chains
  // of products, of which one is zero in every column, because a single one would wait for the
  // tensor core at each step.
  __device__ static void MultiplySet(const ChunkWords<Shape>& words, const ChunkInputs<Shape>& x,
                                     int set, float (&products)[4]) {
    constexpr int kHalves = Shape::kGroups * Shape::kPacked.group / 16;  // 16s of columns
    float other[4] = {};
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int step = (set * kHalves + i) / 2, half = (set * kHalves + i) % 2;
      uint32_t a[4];
      words.Integers(step, half, a);
      const uint32_t* const b = x.words[step] + 2 * half;
      MultiplyAdd(Shape::kGroups >= 4 && i >= kHalves / 2 ? other : products, a, b[0], b[1]);
    }
    if constexpr (Shape::kGroups >= 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) products[i] += other[i];
    }
  }

  // The products are of two rows of x and one group.
  __device__ static void ScaleGroup(const ChunkWords<Shape>& words,
                                    const RowScales<Shape> (&scales)[2], const float* x_sums,
                                    int group, const float (&products)[4],
                                    float (&sums)[2][Shape::kColumns]) {
    float2 of_x = {};
    if constexpr (kMinimum) {
      of_x = *reinterpret_cast<const float2*>(x_sums + group * Shape::kRows);
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const PackedScale scale = scales[upper].OfRaised(words.Record(group, upper), group % 2);
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float& sum = sums[upper][column];
        sum = fmaf(scale.scale, products[upper * 2 + column], sum);
        if constexpr (kMinimum) {
          sum = fmaf(scale.minimum, column == 0 ? of_x.x : of_x.y, sum);
        }
      }
    }
  }

  // The products are of one row of x and a pair of groups.
  __device__ static void ScalePair(const ChunkWords<Shape>& words,
                                   const RowScales<Shape> (&scales)[2], const float* x_sums,
                                   int set, int lane, const float (&products)[4],
                                   float (&sums)[2][Shape::kColumns]) {
    float2 of_x = {};
    if constexpr (kMinimum) {
      of_x = *reinterpret_cast<const float2*>(x_sums + 2 * Shape::PairOf(set, lane % 4));
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float& sum = sums[upper][0];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const PackedScale scale = scales[upper].OfRaised(words.Record(set, upper), i);
        sum = fmaf(scale.scale, products[upper * 2 + i], sum);
        if constexpr (kMinimum) sum = fmaf(scale.minimum, i == 0 ? of_x.x : of_x.y, sum);
      }
    }
  }

  __device__ void AddChains(const float (&chains)[Shape::kChains][2][Shape::kColumns]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int column = 0; column < Shape::kColumns; ++column) {
        float sums[Shape::kChains];
#pragma unroll
        for (int i = 0; i < Shape::kChains; ++i) sums[i] = chains[i][upper][column];
        at[upper][column] = AddUp(sums);
      }
    }
  }

  // (0 + 1) + (2 + 3); with one or two chains, the others are in neighbouring lanes.
  __device__ static float AddUp(const float (&sums)[Shape::kChains]) {
    if constexpr (Shape::kChains == 4) {
      return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    } else if constexpr (Shape::kChains == 2) {
      return (sums[0] + __shfl_xor_sync(~0u, sums[0], 1)) +
             (sums[1] + __shfl_xor_sync(~0u, sums[1], 1));
    } else {
      const float two = sums[0] + __shfl_xor_sync(~0u, sums[0], 1);
      return two + __shfl_xor_sync(~0u, two, 2);
    }
  }
};

}  // namespace litecache::ops::cuda::quantized
