#include "ops/linear/gemv_cpu.h"

#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_isa.h"
#include "ops/common/avx512.h"
#include "ops/common/scratch.h"
#include "ops/common/widen.h"

// One call's arguments, declared outside of the targets' namespaces because all of them use it.
#ifndef LITECACHE_OPS_CPU_GEMV_ROWS_
#define LITECACHE_OPS_CPU_GEMV_ROWS_
namespace litecache::ops::cpu {
namespace {
constexpr int64_t kMaxWidenedTokens = 4;

struct Rows {
  const void* weight;
  int64_t stride;  // elements
  int64_t count;
  const float* x;  // in the order of Arrange
  int64_t x_stride;
  int64_t depth;
  float* sums;  // [tokens][sums_stride]
  int64_t sums_stride;
};
}  // namespace
}  // namespace litecache::ops::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/gemv_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// A block is two vectors of weights. Its tokens' values are in the order in which the weights are
// loaded: bf16 pairs are split into even and odd elements with a shift and a mask, which is cheaper
// than widening in order.
HWY_INLINE int64_t BlockElements() { return 2 * static_cast<int64_t>(hn::Lanes(F32())); }

struct Block {
  hn::Vec<F32> first, second;
};

HWY_INLINE Block LoadBlock(const bf16* w) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(w));
  return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000u)))};
}
template <typename W>
HWY_INLINE Block LoadBlock(const W* w) {
  const F32 d;
  return {LoadAsF32(d, w), LoadAsF32(d, w + hn::Lanes(d))};
}

// Brings a token's values into the order of LoadBlock, with zeros behind the end.
void Arrange(const float* x, int64_t n, bool pairs, float* out) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t block = BlockElements();
  const int64_t padded = (n + block - 1) / block * block;
  if (!pairs) {
    std::copy(x, x + n, out);
    std::fill(out + n, out + padded, 0.0f);
    return;
  }
  const auto arrange_block = [&](const float* from, float* to) HWY_ATTR {
    const auto low = RoundToBf16(d, hn::LoadU(d, from));
    const auto high = RoundToBf16(d, hn::LoadU(d, from + lanes));
#if HWY_TARGET == HWY_SCALAR  // one lane each: the order is even, odd already
    hn::Store(low, d, to);
    hn::Store(high, d, to + lanes);
#else
    hn::Store(hn::ConcatEven(d, high, low), d, to);
    hn::Store(hn::ConcatOdd(d, high, low), d, to + lanes);
#endif
  };
  int64_t i = 0;
  for (; i + block <= n; i += block) arrange_block(x + i, out + i);
  if (i < n) {
    HWY_ALIGN float rest[2 * hn::MaxLanes(F32())] = {};
    std::copy(x + i, x + n, rest);
    arrange_block(rest, out + i);
  }
}

// sums[r][t] = w[r] . x[t] for kRows rows of weights and kTokens arranged tokens. Each sum is one
// chain over the blocks, whatever kRows and kTokens are, so that a token's result does not depend
// on its batch.
template <typename W, int kRows, int kTokens>
HWY_INLINE void Dots(const W* w, int64_t stride, const float* x, int64_t x_stride, int64_t n,
                     float* sums, int64_t sums_stride) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t block = 2 * lanes;
  hn::Vec<F32> sum[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) sum[r][t] = hn::Zero(d);
  }
  const auto accumulate = [&](const W* const* rows, int64_t i) HWY_ATTR {
    for (int r = 0; r < kRows; ++r) {
      const Block b = LoadBlock(rows[r]);
      for (int t = 0; t < kTokens; ++t) {
        const float* values = x + t * x_stride + i;
        sum[r][t] = hn::MulAdd(b.first, hn::Load(d, values), sum[r][t]);
        sum[r][t] = hn::MulAdd(b.second, hn::Load(d, values + lanes), sum[r][t]);
      }
    }
  };
  const W* rows[kRows];
  int64_t i = 0;
  for (; i + block <= n; i += block) {
    for (int r = 0; r < kRows; ++r) {
      rows[r] = w + r * stride + i;
      // Prefetches the next rows: the hardware's prefetchers stop at the end of every row.
      __builtin_prefetch(rows[r] + kRows * stride, 0, 3);
    }
    accumulate(rows, i);
  }
  if (i < n) {
    HWY_ALIGN W rest[kRows][2 * hn::MaxLanes(F32())];
    std::memset(static_cast<void*>(rest), 0, sizeof(rest));
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(rest[r], w + r * stride + i, static_cast<size_t>(n - i) * sizeof(W));
      rows[r] = rest[r];
    }
    accumulate(rows, i);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      sums[t * sums_stride + r] = hn::GetLane(hn::SumOfLanes(d, sum[r][t]));
    }
  }
}

template <typename W, int kTokens>
void DotRows(const Rows& a) {
  constexpr int kRows = kTokens == 1 ? 4 : 2;
  const W* w = static_cast<const W*>(a.weight);
  int64_t r = 0;
  for (; r + kRows <= a.count; r += kRows) {
    Dots<W, kRows, kTokens>(w + r * a.stride, a.stride, a.x, a.x_stride, a.depth, a.sums + r,
                            a.sums_stride);
  }
  for (; r < a.count; ++r) {
    Dots<W, 1, kTokens>(w + r * a.stride, a.stride, a.x, a.x_stride, a.depth, a.sums + r,
                        a.sums_stride);
  }
}

template <typename W>
void DotTokens(const Rows& a, int64_t tokens) {
  static_assert(kMaxWidenedTokens == 4);
  if (tokens == 1) return DotRows<W, 1>(a);
  if (tokens == 2) return DotRows<W, 2>(a);
  if (tokens == 3) return DotRows<W, 3>(a);
  DotRows<W, 4>(a);
}

void MultiplyRows(DType dtype, const Rows& a, int64_t tokens) {
  if (dtype == DType::kBF16) return DotTokens<bf16>(a, tokens);
  if (dtype == DType::kF16) return DotTokens<f16>(a, tokens);
  DotTokens<float>(a, tokens);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(Arrange);
HWY_EXPORT(MultiplyRows);

namespace {

constexpr int64_t kMaxTokens = kMaxAvx512GemvTokens;
static_assert(kMaxTokens >= kMaxWidenedTokens);

// Sums of a piece's rows for one token that are stored together.
constexpr int64_t kSums = 64;

// bf16 weights and x are multiplied by dot products of pairs.
bool UsesPairs(DType weight) {
  return weight == DType::kBF16 && ActiveCpuIsa() >= CpuIsa::kAvx512Bf16;
}

// x as the kernels read it: bf16 for pairs, otherwise f32 in the order of LoadBlock; every token is
// padded with zeros.
struct PreparedX {
  bool pairs;
  const void* data;
  int64_t stride;
};

int64_t PaddedDepth(int64_t depth) {
  constexpr int64_t kPad = 64;  // a block is at most 32 elements
  return (depth + kPad - 1) / kPad * kPad;
}

PreparedX Prepare(const MatrixView& x, DType weight) {
  static thread_local Scratch scratch;
  const int64_t stride = PaddedDepth(x.cols);
  const auto size = static_cast<size_t>(x.rows * stride);
  if (UsesPairs(weight)) {
    auto* rows = scratch.Reserve<bf16>(size);
    for (int64_t t = 0; t < x.rows; ++t, rows += stride) {
      NarrowToBf16(x.Row<float>(t), x.cols, rows);
      std::fill(rows + x.cols, rows + stride, bf16(0.0f));
    }
    return {true, rows - x.rows * stride, stride};
  }
  auto* rows = scratch.Reserve<float>(size);
  const auto arrange = HWY_DYNAMIC_DISPATCH(Arrange);
  for (int64_t t = 0; t < x.rows; ++t) {
    arrange(x.Row<float>(t), x.cols, weight == DType::kBF16, rows + t * stride);
  }
  return {false, rows, stride};
}

// Computes outputs [begin, end) of one part.
void MultiplyPart(const LinearPart& part, const PreparedX& x, Epilogue epilogue, int64_t begin,
                  int64_t end) {
  const MatrixView& weight = part.weight;
  const int64_t tokens = part.y.rows;
  const int64_t row_bytes = weight.stride * static_cast<int64_t>(SizeOf(weight.dtype));
  float sums[kSums * kMaxTokens];
  for (int64_t n0 = begin; n0 < end; n0 += kSums) {
    const int64_t count = std::min(kSums, end - n0);
    const auto* rows = static_cast<const std::byte*>(weight.data) + n0 * row_bytes;
    if (x.pairs) {
      Avx512Gemv({.weight = rows,
                  .stride = weight.stride,
                  .count = count,
                  .x = x.data,
                  .x_stride = x.stride,
                  .tokens = tokens,
                  .depth = weight.cols,
                  .sums = sums,
                  .sums_stride = kSums});
    } else {
      HWY_DYNAMIC_DISPATCH(MultiplyRows)
      (weight.dtype,
       {.weight = rows,
        .stride = weight.stride,
        .count = count,
        .x = static_cast<const float*>(x.data),
        .x_stride = x.stride,
        .depth = weight.cols,
        .sums = sums,
        .sums_stride = kSums},
       tokens);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      float* __restrict sum = sums + t * kSums;
      float* __restrict out = part.y.Row<float>(t) + n0;
      if (part.bias != nullptr) {
        for (int64_t i = 0; i < count; ++i) sum[i] += part.bias[n0 + i];
      }
      if (epilogue == Epilogue::kAdd) {
        for (int64_t i = 0; i < count; ++i) out[i] += sum[i];
      } else {
        std::copy_n(sum, count, out);
      }
    }
  }
}

}  // namespace

uint64_t GemvScratchBytes(int64_t depth) {
  constexpr int64_t kPairs = kMaxTokens * static_cast<int64_t>(sizeof(bf16));
  constexpr int64_t kWidened = kMaxWidenedTokens * static_cast<int64_t>(sizeof(float));
  return static_cast<uint64_t>(PaddedDepth(depth) * std::max(kPairs, kWidened));
}

int64_t MaxGemvTokens(DType weight) { return UsesPairs(weight) ? kMaxTokens : kMaxWidenedTokens; }

void Gemv(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
          Epilogue epilogue) {
  const PreparedX prepared = Prepare(x, parts.front().weight.dtype);
  int64_t rows = 0, row_bytes = 0;
  for (const LinearPart& part : parts) {
    rows += part.weight.rows;
    row_bytes = part.weight.stride * static_cast<int64_t>(SizeOf(part.weight.dtype));
  }
  // Pieces of about 64 KiB, at least 16 KiB: long enough for the prefetchers, short enough to
  // balance the threads. Every thread gets equally many, so that undisturbed threads finish
  // together.
  constexpr int64_t kLeastBytes = 16 << 10, kMostBytes = 64 << 10, kRowStep = 16;
  const int64_t bytes = rows * row_bytes, threads = pool.size();
  int64_t pieces = std::max(bytes / kMostBytes, std::min(4 * threads, bytes / kLeastBytes));
  if (pieces > threads) pieces = pieces / threads * threads;
  pieces = std::max<int64_t>(pieces, 1);
  const int64_t grain = ((rows + pieces - 1) / pieces + kRowStep - 1) / kRowStep * kRowStep;
  pool.ParallelFor(rows, grain, [&](int64_t begin, int64_t end, int) {
    for (const LinearPart& part : parts) {
      const int64_t count = part.weight.rows;
      if (begin < count && end > 0) {
        MultiplyPart(part, prepared, epilogue, std::max<int64_t>(begin, 0), std::min(end, count));
      }
      begin -= count;
      end -= count;
    }
  });
}

}  // namespace litecache::ops::cpu
#endif
