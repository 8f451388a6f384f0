#include "ops/common/convert_rows_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/common/row_address.h"
#include "ops/common/row_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/convert_rows_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Converts between a format's codes and their f32 values, Lanes(d) of them.
struct Fp8 {
  static constexpr float kLargest = 448.0f;

  // Sign, 4 bits of exponent (bias 7), 3 of mantissa: exponent and mantissa are moved to f32's
  // bits. An exponent of 0 (subnormals, m * 2^-9) gives 2^-7 (1 + m / 8), which is half the wanted
  // value after the 1 is subtracted. No subnormal f32 occurs: they are slow on some processors.
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
    // The last bit of 2^14 is worth 2^-9, the step of the subnormals.
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

struct Int4 {};

// Minimum and step of a group.
struct Int4Scale {
  f16 minimum, step;
};
static_assert(sizeof(Int4Scale) == 4);

// Where a part's codes and groups are in a row.
struct Int4Part {
  size_t codes, scales;  // offsets in bytes
  Int4Part(int64_t head_dim, int64_t part) {
    const RowFormat format{RowEncoding::kInt4, head_dim};
    codes = static_cast<size_t>(part) * format.int4_codes();
    scales = 2 * format.int4_codes() +
             static_cast<size_t>(part) * format.int4_groups() * sizeof(Int4Scale);
  }
};

struct Int4Source {
  const uint8_t* codes;
  const std::byte* scales;
  Int4Source(const std::byte* row, int64_t head_dim, int64_t part) {
    const Int4Part at(head_dim, part);
    codes = reinterpret_cast<const uint8_t*>(row) + at.codes;
    scales = row + at.scales;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t i) const {
    Int4Scale scale;
    std::memcpy(&scale, scales + static_cast<size_t>(i / kInt4Group) * sizeof(scale),
                sizeof(scale));
    const F32x1 one;
    return hn::MulAdd(Codes(d, i), hn::Set(d, hn::GetLane(LoadAsF32(one, &scale.step))),
                      hn::Set(d, hn::GetLane(LoadAsF32(one, &scale.minimum))));
  }

 private:
  template <class D>
  HWY_INLINE hn::Vec<D> Codes(D d, int64_t i) const {
    const uint8_t* bytes = codes + i / 2;
    if constexpr (hn::MaxLanes(D()) == 1) {
      return hn::Set(d, static_cast<float>(i % 2 == 0 ? *bytes & 15 : *bytes >> 4));
    } else {
      // A byte's two codes become two bytes; vectors begin at even indices.
      const hn::Rebind<uint8_t, D> d8;
      const hn::Repartition<uint16_t, decltype(d8)> d16;
      const hn::Rebind<uint8_t, decltype(d16)> dbytes;
      const auto pair = hn::PromoteTo(d16, hn::LoadU(dbytes, bytes));
      const auto low = hn::And(pair, hn::Set(d16, 0x0f));
      const auto high = hn::ShiftLeft<4>(hn::And(pair, hn::Set(d16, 0xf0)));
      const hn::RebindToSigned<D> di;
      return hn::ConvertTo(d, hn::PromoteTo(di, hn::BitCast(d8, hn::Or(low, high))));
    }
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

// The largest magnitude; infinities count as the largest float, and a NaN makes the result, and
// thus the whole part, NaN.
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
  // A division, because the reciprocal of the smallest scales is infinite.
  ForEachVector(head_dim, [&](auto d, int64_t i) HWY_ATTR {
    Code::Encode(d, hn::Div(source.Load(d, i), hn::Set(d, scale)), codes + i);
  });
}

// Codes are computed from minimum and step as stored, so that rounding these to f16 adds no error
// except for values that fall out of their range.
template <class Source>
HWY_INLINE void WritePart(const Source& source, int64_t head_dim, int64_t part, Int4*,
                          std::byte* row) {
  constexpr float kMost = 65504;
  const Int4Part at(head_dim, part);
  auto* codes = reinterpret_cast<uint8_t*>(row) + at.codes;
  HWY_ALIGN float values[kInt4Group];
  for (int64_t first = 0; first < head_dim; first += kInt4Group) {
    const int64_t count = std::min(kInt4Group, head_dim - first);
    bool nan = false;
    const F32 d;
    auto lowest = hn::Set(d, kMost), highest = hn::Set(d, -kMost);
    float low = kMost, high = -kMost;
    ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
      const auto v = source.Load(tag, first + i);
      nan |= !hn::AllFalse(tag, hn::IsNaN(v));
      const auto x = hn::Max(hn::Set(tag, -kMost), hn::Min(v, hn::Set(tag, kMost)));
      hn::StoreU(x, tag, values + i);
      if constexpr (std::is_same_v<decltype(tag), F32>) {
        lowest = hn::Min(lowest, x);
        highest = hn::Max(highest, x);
      } else {
        low = std::min(low, hn::GetLane(x));
        high = std::max(high, hn::GetLane(x));
      }
    });
    low = std::min(low, hn::GetLane(hn::MinOfLanes(d, lowest)));
    high = std::max(high, hn::GetLane(hn::MaxOfLanes(d, highest)));
    if (nan) low = high = std::numeric_limits<float>::quiet_NaN();
    const Int4Scale scale{f16(low), f16((high - low) / 15)};
    std::memcpy(row + at.scales + static_cast<size_t>(first / kInt4Group) * sizeof(scale), &scale,
                sizeof(scale));
    const auto minimum = static_cast<float>(scale.minimum);
    const auto step = static_cast<float>(scale.step);
    uint8_t group[kInt4Group] = {};
    if (step > 0) {
      ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
        const hn::Rebind<uint8_t, decltype(tag)> d8;
        const auto code =
            hn::Div(hn::Sub(hn::LoadU(tag, values + i), hn::Set(tag, minimum)), hn::Set(tag, step));
        const auto clamped = hn::Max(hn::Zero(tag), hn::Min(code, hn::Set(tag, 15.0f)));
        hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(clamped)), d8, group + i);
      });
    }
    for (int64_t i = 0; i < count; i += 2) {
      codes[(first + i) / 2] =
          static_cast<uint8_t>(group[i] | (i + 1 < count ? group[i + 1] << 4 : 0));
    }
  }
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
    case RowEncoding::kInt4:
      return Write<Source, Int4>(source, head_dim, target);
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
    case RowEncoding::kInt4:
      return WriteAs<Int4Source>(to, source, head_dim, target);
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

void CopyRows(const ConvertWork& w) {
  const RowAddress source(w.source), target(w.target);
  const int64_t end = w.begin + w.count;
  if (w.source.format.encoding != w.target.format.encoding) {
    const RowConverter convert(w.source.format, w.target.format);
    for (int64_t i = w.begin; i < end; ++i) convert(source(i), target(i));
    return;
  }
  // Rows that are adjacent on both sides are copied together.
  for (int64_t i = w.begin; i < end;) {
    const int64_t rows = std::min({w.source.page_tokens - i % w.source.page_tokens,
                                   w.target.page_tokens - i % w.target.page_tokens, end - i});
    std::memcpy(target(i), source(i), static_cast<size_t>(rows) * source.row_bytes());
    i += rows;
  }
}

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
