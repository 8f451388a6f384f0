#include "ops/select/row_scores_cpu.h"

#include <algorithm>

#include "ops/common/convert_rows_cpu.h"
#include "ops/common/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/row_scores_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Elements of a key as f32, without the row's scale.
struct LoadBf16 {
  static constexpr int64_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    return LoadAsF32(d, reinterpret_cast<const bf16*>(p));
  }
};
struct LoadF32 {
  static constexpr int64_t kBytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  }
};
struct LoadInt8 {
  static constexpr int64_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
  }
};
// E4M3's exponent and mantissa are moved to their places in an f32, whose exponent is then off by
// 127 - 7; a multiplication corrects that, for subnormals too.
struct LoadFp8 {
  static constexpr int64_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* p) {
    const hn::Rebind<uint8_t, D> d8;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
    const auto magnitude = hn::ShiftLeft<20>(hn::And(bits, hn::Set(du, 0x7fu)));
    const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
    return hn::Mul(hn::BitCast(d, hn::Or(magnitude, sign)), hn::Set(d, 0x1p120f));
  }
};

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
static_assert(16 % kLanes == 0);
// The sums of kHeads heads and kLanes / kHeads rows fill one vector of results.
constexpr int kManyHeads = kLanes < 4 ? kLanes : 4;

// Lane i of the result is the sum of v[i]'s lanes, i < kLanes.
template <int kCount>
HWY_INLINE hn::Vec<F32> SumVectors(const hn::Vec<F32>* v) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
#if HWY_TARGET == HWY_SCALAR
    return v[0];  // one lane
#else
    const F32 d;
    hn::Vec<F32> half[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) {
      half[i] = hn::Add(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]),
                        hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
    }
    return SumVectors<kCount / 2>(half);
#endif
  }
}

// For kLanes / kHeads rows and kHeads heads: sums[r * kHeads + j].
template <class Load, int kHeads>
HWY_INLINE void Tile(const std::byte* const* rows, int64_t head_dim, const float* query,
                     int64_t padded, float* sums) {
  constexpr int kRows = kLanes / kHeads;
  const F32 d;
  hn::Vec<F32> sum[kLanes];
  for (int i = 0; i < kLanes; ++i) sum[i] = hn::Zero(d);
  int64_t c = 0;
  for (; c + kLanes <= head_dim; c += kLanes) {
    hn::Vec<F32> q[kHeads];
    for (int j = 0; j < kHeads; ++j) q[j] = hn::LoadU(d, query + j * padded + c);
    for (int r = 0; r < kRows; ++r) {
      const auto key = Load::Load(d, rows[r] + c * Load::kBytes);
      for (int j = 0; j < kHeads; ++j) {
        sum[r * kHeads + j] = hn::MulAdd(key, q[j], sum[r * kHeads + j]);
      }
    }
  }
  if (c < head_dim) {
    // Data behind a key must not be used: V may hold infinities.
    for (int r = 0; r < kRows; ++r) {
      HWY_ALIGN std::byte rest[kLanes * sizeof(float)] = {};
      std::memcpy(rest, rows[r] + c * Load::kBytes,
                  static_cast<size_t>((head_dim - c) * Load::kBytes));
      const auto key = Load::Load(d, rest);
      for (int j = 0; j < kHeads; ++j) {
        sum[r * kHeads + j] =
            hn::MulAdd(key, hn::LoadU(d, query + j * padded + c), sum[r * kHeads + j]);
      }
    }
  }
  hn::Store(SumVectors<kLanes>(sum), d, sums);
}

template <class Load, int kHeads>
HWY_INLINE void ScoreHeads(const RowFormat& format, const std::byte* rows, int64_t count,
                           const float* query, int64_t padded, float* scores, int64_t stride) {
  constexpr int kRows = kLanes / kHeads;
  // Prefetches a piece of 16 rows ahead: only the keys of the rows are read, a pattern that the
  // hardware's prefetchers mispredict.
  constexpr int64_t kAhead = 16;
  const auto row_bytes = static_cast<int64_t>(format.row_bytes());
  const int64_t key_bytes = format.head_dim * Load::kBytes;
  HWY_ALIGN float sums[kLanes];
  for (int64_t first = 0; first < count; first += kRows) {
    const int64_t n = std::min<int64_t>(kRows, count - first);
    const std::byte* addresses[kRows];
    for (int r = 0; r < kRows; ++r) {
      addresses[r] = rows + (first + std::min<int64_t>(r, n - 1)) * row_bytes;
      for (int64_t i = 0; i < key_bytes; i += 64) {
        __builtin_prefetch(addresses[r] + kAhead * row_bytes + i, 0, 3);
      }
    }
    Tile<Load, kHeads>(addresses, format.head_dim, query, padded, sums);
    for (int64_t r = 0; r < n; ++r) {
      float scale = 1;
      if (format.quantized()) {
        std::memcpy(&scale, addresses[r] + 2 * format.head_dim, sizeof(scale));
      }
      for (int j = 0; j < kHeads; ++j) {
        scores[j * stride + first + r] = sums[r * kHeads + j] * scale;
      }
    }
  }
}

template <class Load>
void ScoreRowsOf(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
                 int64_t heads, float* scores, int64_t stride) {
  const int64_t padded = PaddedDim(format.head_dim);
  int64_t j = 0;
  for (; j + kManyHeads <= heads; j += kManyHeads) {
    ScoreHeads<Load, kManyHeads>(format, rows, count, query + j * padded, padded,
                                 scores + j * stride, stride);
  }
  for (; j < heads; ++j) {
    ScoreHeads<Load, 1>(format, rows, count, query + j * padded, padded, scores + j * stride,
                        stride);
  }
}

void ScoreRows(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
               int64_t heads, float* scores, int64_t stride) {
  switch (format.encoding) {
    case RowEncoding::kBF16:
      return ScoreRowsOf<LoadBf16>(format, rows, count, query, heads, scores, stride);
    case RowEncoding::kF32:
      return ScoreRowsOf<LoadF32>(format, rows, count, query, heads, scores, stride);
    case RowEncoding::kFp8:
      return ScoreRowsOf<LoadFp8>(format, rows, count, query, heads, scores, stride);
    case RowEncoding::kInt8:
      return ScoreRowsOf<LoadInt8>(format, rows, count, query, heads, scores, stride);
    case RowEncoding::kInt4:
      return;  // already expanded
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ScoreRows);

void RowScores(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
               int64_t heads, float* scores, int64_t stride) {
  if (format.encoding != RowEncoding::kInt4) {
    HWY_DYNAMIC_DISPATCH(ScoreRows)(format, rows, count, query, heads, scores, stride);
    return;
  }
  // Scores from codes alone would need the groups' minima as well, so the rows are expanded.
  constexpr int64_t kRows = 16;
  const RowFormat plain{RowEncoding::kF32, format.head_dim};
  const RowConverter convert(format, plain);
  static thread_local Scratch scratch;
  auto* expanded = scratch.Reserve<std::byte>(static_cast<size_t>(kRows) * plain.row_bytes());
  for (int64_t first = 0; first < count; first += kRows) {
    const int64_t n = std::min(kRows, count - first);
    for (int64_t i = 0; i < n; ++i) {
      convert(rows + static_cast<size_t>(first + i) * format.row_bytes(),
              expanded + static_cast<size_t>(i) * plain.row_bytes());
    }
    HWY_DYNAMIC_DISPATCH(ScoreRows)(plain, expanded, n, query, heads, scores + first, stride);
  }
}

}  // namespace litecache::ops::cpu
#endif
