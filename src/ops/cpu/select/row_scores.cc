#include "ops/cpu/select/row_scores.h"

#include <algorithm>

#include "ops/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/select/row_scores.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Codes as f32, without the row's scale.
template <class D>
HWY_INLINE hn::Vec<D> LoadInt8(D d, const std::byte* p) {
  const hn::Rebind<int8_t, D> d8;
  const hn::RebindToSigned<D> di;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}
// E4M3's exponent and mantissa are moved to their places in an f32, whose exponent is then off by
// 127 - 7; a product mends that for subnormals too.
template <class D>
HWY_INLINE hn::Vec<D> LoadFp8(D d, const std::byte* p) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
  const auto magnitude = hn::ShiftLeft<20>(hn::And(bits, hn::Set(du, 0x7fu)));
  const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  return hn::Mul(hn::BitCast(d, hn::Or(magnitude, sign)), hn::Set(d, 0x1p120f));
}

void WidenKey(const RowFormat& format, const std::byte* row, float* out) {
  const int64_t n = format.head_dim;
  switch (format.encoding) {
    case RowEncoding::kBF16:
      ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
        hn::StoreU(LoadAsF32(d, reinterpret_cast<const bf16*>(row) + i), d, out + i);
      });
      return;
    case RowEncoding::kF32:
      ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
        hn::StoreU(LoadAsF32(d, reinterpret_cast<const float*>(row) + i), d, out + i);
      });
      return;
    case RowEncoding::kFp8:
      ForEachVector(
          n, [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadFp8(d, row + i), d, out + i); });
      return;
    case RowEncoding::kInt8:
      ForEachVector(
          n, [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadInt8(d, row + i), d, out + i); });
      return;
  }
}

// Lane i of the result is the sum of v[i]'s lanes; v has a vector a lane.
HWY_INLINE hn::Vec<F32> SumRows(hn::Vec<F32>* v) {
#if HWY_TARGET != HWY_SCALAR
  const F32 d;
  for (size_t n = hn::Lanes(d); n > 1; n /= 2) {
    for (size_t i = 0; i < n / 2; ++i) {
      v[i] = hn::Add(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]),
                     hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
    }
  }
#endif
  return v[0];
}

// tile: memory for a vector's lanes of widened keys.
void ScoreRows(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
               int64_t heads, float* scores, int64_t stride, float* tile) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto row_bytes = static_cast<int64_t>(format.row_bytes());
  const int64_t padded = PaddedDim(format.head_dim);
  std::fill(tile, tile + lanes * padded, 0.0f);
  HWY_ALIGN float scales[hn::MaxLanes(F32())];
  HWY_ALIGN float sums[hn::MaxLanes(F32())];
  for (int64_t first = 0; first < count; first += lanes) {
    const int64_t n = std::min(lanes, count - first);
    for (int64_t r = 0; r < n; ++r) {
      const std::byte* row = rows + (first + r) * row_bytes;
      WidenKey(format, row, tile + r * padded);
      scales[r] = 1;
      if (format.quantized()) std::memcpy(scales + r, row + 2 * format.head_dim, sizeof(float));
    }
    for (int64_t j = 0; j < heads; ++j) {
      const float* q = query + j * padded;
      hn::Vec<F32> sum[hn::MaxLanes(F32())];
      for (int64_t r = 0; r < lanes; ++r) {
        sum[r] = hn::Zero(d);
        for (int64_t c = 0; c < padded; c += lanes) {
          sum[r] = hn::MulAdd(hn::Load(d, tile + r * padded + c), hn::LoadU(d, q + c), sum[r]);
        }
      }
      hn::Store(hn::Mul(SumRows(sum), hn::Load(d, scales)), d, sums);
      std::copy_n(sums, n, scores + j * stride + first);
    }
  }
}

int64_t LanesOf() { return static_cast<int64_t>(hn::Lanes(F32())); }

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ScoreRows);
HWY_EXPORT(LanesOf);

void RowScores(const RowFormat& format, const std::byte* rows, int64_t count, const float* query,
               int64_t heads, float* scores, int64_t stride) {
  static thread_local Scratch scratch;
  const int64_t lanes = HWY_DYNAMIC_DISPATCH(LanesOf)();
  auto* tile = scratch.Reserve<float>(static_cast<size_t>(lanes * PaddedDim(format.head_dim)));
  HWY_DYNAMIC_DISPATCH(ScoreRows)(format, rows, count, query, heads, scores, stride, tile);
}

}  // namespace litecache::ops::cpu
#endif
