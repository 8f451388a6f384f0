#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/ops.h"
#include "ops/cpu/row_address.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/convert_rows.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Codes of a format and their values as f32, Lanes(d) of them.
struct Fp8 {
  static constexpr float kLargest = 448.0f;

  // Sign, 4 bits of exponent (bias 7), 3 of mantissa: exponent and mantissa move to f32's places.
  // An exponent of 0 (subnormals, m * 2^-9) comes out as 2^-7 (1 + m / 8), half of what is wanted
  // after the 1 is taken away. No subnormal f32 occurs: they are slow on some processors.
  template <class D>
  static HWY_INLINE hn::Vec<D> Decode(D d, const uint8_t* codes) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint8_t, D> d8;
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes));
    const auto magnitude = hn::And(code, hn::Set(du, 0x7f));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80)));
    const auto normal =
        hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23)));
    const auto above_one = hn::Sub(normal, hn::Set(d, 0x1p-7f));
    const auto value = hn::IfThenElse(hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 8))),
                                      hn::Add(above_one, above_one), normal);
    return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
  }

  template <class D>
  static HWY_INLINE void Encode(D d, hn::Vec<D> value, uint8_t* codes) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint8_t, D> d8;
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::ShiftRight<24>(hn::And(bits, hn::Set(du, 0x80000000u)));
    const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, kLargest));
    const auto u = hn::BitCast(du, magnitude);
    const auto lsb = hn::And(hn::ShiftRight<20>(u), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(u, hn::Add(lsb, hn::Set(du, 0x7ffff))));
    const auto normal = hn::Sub(rounded, hn::Set(du, 120u << 3));
    // 2^14 has its last bit at 2^-9, the step of the subnormals.
    const auto steps = hn::BitCast(du, hn::Add(magnitude, hn::Set(d, 0x1p14f)));
    const auto subnormal = hn::Sub(steps, hn::Set(du, 0x46800000u));
    const auto small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
    const auto code = hn::Or(hn::IfThenElse(small, subnormal, normal), sign);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, code)), d8, codes);
  }
};

struct Int8 {
  static constexpr float kLargest = 127.0f;

  template <class D>
  static HWY_INLINE hn::Vec<D> Decode(D d, const uint8_t* codes) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int8_t, D> d8;
    const auto code = hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes));
    return hn::ConvertTo(d, hn::PromoteTo(di, code));
  }

  template <class D>
  static HWY_INLINE void Encode(D d, hn::Vec<D> value, uint8_t* codes) {
    const hn::Rebind<int8_t, D> d8;
    const auto largest = hn::Set(d, kLargest);
    const auto clamped = hn::Max(hn::Neg(largest), hn::Min(value, largest));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(clamped)), d8, reinterpret_cast<int8_t*>(codes));
  }
};

// Part `part` (0: K, 1: V) of a row, read as f32.
template <typename T>
struct PlainSource {
  const T* data;
  PlainSource(const std::byte* row, int64_t head_dim, int64_t part)
      : data(reinterpret_cast<const T*>(row) + part * head_dim) {}
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t i) const {
    return LoadAsF32(d, data + i);
  }
};

template <class Code>
struct CodeSource {
  const uint8_t* codes;
  float scale;
  CodeSource(const std::byte* row, int64_t head_dim, int64_t part)
      : codes(reinterpret_cast<const uint8_t*>(row) + part * head_dim) {
    std::memcpy(&scale, row + 2 * head_dim + part * 4, sizeof(scale));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t i) const {
    return hn::Mul(Code::Decode(d, codes + i), hn::Set(d, scale));
  }
};

template <class Source>
HWY_INLINE void WritePart(const Source& source, int64_t head_dim, int64_t part, float*,
                          std::byte* row) {
  float* out = reinterpret_cast<float*>(row) + part * head_dim;
  ForEachVector(head_dim,
                [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(source.Load(d, i), d, out + i); });
}

template <class Source>
HWY_INLINE void WritePart(const Source& source, int64_t head_dim, int64_t part, bf16*,
                          std::byte* row) {
  bf16* out = reinterpret_cast<bf16*>(row) + part * head_dim;
  ForEachVector(head_dim,
                [&](auto d, int64_t i) HWY_ATTR { StoreAsBf16(d, source.Load(d, i), out + i); });
}

// The largest magnitude; infinities count as the largest float, a NaN makes it NaN, and so the
// whole part.
template <class Source>
HWY_INLINE float LargestMagnitude(const Source& source, int64_t n) {
  const F32 d;
  auto highest = hn::Zero(d);
  float rest = 0;
  bool nan = false;
  ForEachVector(n, [&](auto tag, int64_t i) HWY_ATTR {
    const auto v = source.Load(tag, i);
    nan |= !hn::AllFalse(tag, hn::IsNaN(v));
    if constexpr (std::is_same_v<decltype(tag), F32>) {
      highest = hn::Max(highest, hn::Abs(v));
    } else {
      rest = std::max(rest, std::abs(hn::GetLane(v)));
    }
  });
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  const float largest = std::max(rest, hn::GetLane(hn::MaxOfLanes(d, highest)));
  return std::min(largest, std::numeric_limits<float>::max());
}

template <class Source, class Code>
HWY_INLINE void WritePart(const Source& source, int64_t head_dim, int64_t part, Code*,
                          std::byte* row) {
  auto* codes = reinterpret_cast<uint8_t*>(row) + part * head_dim;
  const float scale = LargestMagnitude(source, head_dim) / Code::kLargest;
  std::memcpy(row + 2 * head_dim + part * 4, &scale, sizeof(scale));
  std::memset(row + 2 * head_dim + 8 + part * 4, 0, 4);
  if (!(scale > 0)) {
    std::memset(codes, 0, static_cast<size_t>(head_dim));
    return;
  }
  // A division: the reciprocal of the smallest scales is infinite.
  ForEachVector(head_dim, [&](auto d, int64_t i) HWY_ATTR {
    Code::Encode(d, hn::Div(source.Load(d, i), hn::Set(d, scale)), codes + i);
  });
}

template <class Source, class Target>
HWY_INLINE void Write(const std::byte* source, int64_t head_dim, std::byte* target) {
  for (int64_t part = 0; part < 2; ++part) {
    WritePart(Source(source, head_dim, part), head_dim, part, static_cast<Target*>(nullptr),
              target);
  }
}

template <class Source>
HWY_INLINE void WriteAs(RowEncoding to, const std::byte* source, int64_t head_dim,
                        std::byte* target) {
  switch (to) {
    case RowEncoding::kBF16:
      return Write<Source, bf16>(source, head_dim, target);
    case RowEncoding::kF32:
      return Write<Source, float>(source, head_dim, target);
    case RowEncoding::kFp8:
      return Write<Source, Fp8>(source, head_dim, target);
    case RowEncoding::kInt8:
      return Write<Source, Int8>(source, head_dim, target);
  }
}

void ConvertOneRow(RowEncoding from, const std::byte* source, RowEncoding to, int64_t head_dim,
                   std::byte* target) {
  switch (from) {
    case RowEncoding::kBF16:
      return WriteAs<PlainSource<bf16>>(to, source, head_dim, target);
    case RowEncoding::kF32:
      return WriteAs<PlainSource<float>>(to, source, head_dim, target);
    case RowEncoding::kFp8:
      return WriteAs<CodeSource<Fp8>>(to, source, head_dim, target);
    case RowEncoding::kInt8:
      return WriteAs<CodeSource<Int8>>(to, source, head_dim, target);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ConvertOneRow);

RowConverter::RowConverter(const RowFormat& from, const RowFormat& to)
    : convert_(HWY_DYNAMIC_DISPATCH(ConvertOneRow)),
      from_(from.encoding),
      to_(to.encoding),
      head_dim_(from.head_dim),
      row_bytes_(from.row_bytes()) {}

void ConvertRows(ThreadPool& pool, std::span<const ConvertWork> work) {
  for (const ConvertWork& w : work) {
    const RowConverter convert(w.source.format, w.target.format);
    const RowAddress source(w.source), target(w.target);
    pool.ParallelFor(w.count, RowGrain(2 * w.source.format.head_dim),
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t i = w.begin + begin; i < w.begin + end; ++i) {
                         convert(source(i), target(i));
                       }
                     });
  }
}

}  // namespace litecache::ops::cpu
#endif
