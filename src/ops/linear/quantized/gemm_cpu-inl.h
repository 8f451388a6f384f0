// Products with many rows of x: weights are unpacked to bytes in memory once for all rows, and
// lanes are rows of x. Included once for each set of instructions, by
// kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Without VNNI, sums of two byte products are 16 bits; with it, signed levels are made unsigned.
#if defined(LC_QUANTIZED_VNNI)
constexpr bool kVnni = true;
using Ints = __m512i;
using Floats = __m512;
constexpr int kTileRows = 4;
#else
constexpr bool kVnni = false;
using Ints = __m256i;
using Floats = __m256;
constexpr int kTileRows = 2;
#endif
constexpr int kTilePanels = 2;
constexpr int64_t kLanes = sizeof(Ints) / 4;

template <class Format>
constexpr bool kSignedLevels = Format::kSigned && !kVnni;
template <class Format>
constexpr bool kHasMinimum = Format::kMinimum || (Format::kSigned && kVnni);

// A slice of one row, unpacked.
struct alignas(64) UnpackedSlice {
  uint8_t levels[kSliceValues];
  // Of 32 values: [unit] in the first half. Of 16 values: [half][unit].
  float scales[2 * kSliceUnits];
  float minima[2 * kSliceUnits];
};

static_assert(sizeof(UnpackedSlice) == kUnpackedBytes);

template <class Format>
LC_INLINE void StoreSlice(const std::byte* block, UnpackedSlice* out) {
  Slice s;
  Format::Unpack(block, s);
  for (int u = 0; u < 8; ++u) {
    __m256i q = s.levels[u];
    if constexpr (Format::kSigned && kVnni) q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out->levels + u * kUnitValues), q);
  }
  if constexpr (Format::kHalves) {
    const __m128i even = _mm256_castsi256_si128(s.multiples);
    const __m128i odd = _mm256_extracti128_si256(s.multiples, 1);
    const auto scale = [&](__m128i words) __attribute__((always_inline)) {
      return _mm256_mul_ps(s.unit, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(words)));
    };
    _mm256_store_ps(out->scales, scale(even));
    _mm256_store_ps(out->scales + 8, scale(odd));
    // Groups in order to even ones and odd ones.
    const __m256i sorted = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m256 low = _mm256_permutevar8x32_ps(s.half_minima[0], sorted);
    const __m256 high = _mm256_permutevar8x32_ps(s.half_minima[1], sorted);
    _mm256_store_ps(out->minima, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_store_ps(out->minima + 8, _mm256_permute2f128_ps(low, high, 0x31));
  } else {
    _mm256_store_ps(out->scales, s.scale);
    if constexpr (Format::kMinimum) {
      _mm256_store_ps(out->minima, s.minimum);
    } else {
      _mm256_store_ps(out->minima, _mm256_mul_ps(s.scale, _mm256_set1_ps(128)));
    }
  }
}

// A panel's slice (QuantizedPanel).
struct PanelSlice {
  const std::byte* data;
  LC_INLINE Ints Levels(int64_t step) const {
    return Read<Ints>(data + step * static_cast<int64_t>(sizeof(Ints)));
  }
  LC_INLINE Floats Row(int64_t row) const {
    constexpr int64_t kLevels = kSliceUnits * kUnitValues * kLanes;
    return Read<Floats>(data + kLevels + row * static_cast<int64_t>(sizeof(Floats)));
  }
  LC_INLINE Floats Scales(int64_t unit) const { return Row(unit); }
  LC_INLINE Floats Sums(int64_t unit) const { return Row(kSliceUnits + unit); }
  LC_INLINE Floats Half(int64_t unit, int64_t half) const {
    return Row(2 * kSliceUnits + 2 * unit + half);
  }
};

#if defined(LC_QUANTIZED_VNNI)
LC_INLINE Ints Four(const uint8_t* levels) { return _mm512_set1_epi32(Read<int32_t>(levels)); }
LC_INLINE Floats Fill(float v) { return _mm512_set1_ps(v); }
LC_INLINE Floats ToFloats(Ints v) { return _mm512_cvtepi32_ps(v); }
LC_INLINE Floats Times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
LC_INLINE Floats Add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
LC_INLINE Floats Subtract(Floats a, Floats b, Floats sum) { return _mm512_fnmadd_ps(a, b, sum); }

// sums[r][p] = the products of steps [first, first + kCount) of four values each.
template <class Format, int kCount, int kRows, int kPanels>
LC_INLINE void Dots(const uint8_t* const* levels, const PanelSlice* panels, int64_t first,
                    Ints (&sums)[kRows][kPanels]) {
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) sums[r][p] = _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    Ints x[kPanels];
    for (int p = 0; p < kPanels; ++p) x[p] = panels[p].Levels(first + i);
    for (int r = 0; r < kRows; ++r) {
      const Ints w = Four(levels[r] + (first + i) * 4);
      for (int p = 0; p < kPanels; ++p) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], w, x[p]);
    }
  }
}
#else
LC_INLINE Ints Four(const uint8_t* levels) { return _mm256_set1_epi32(Read<int32_t>(levels)); }
LC_INLINE Floats Fill(float v) { return _mm256_set1_ps(v); }
LC_INLINE Floats ToFloats(Ints v) { return _mm256_cvtepi32_ps(v); }
LC_INLINE Floats Times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
LC_INLINE Floats Add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
LC_INLINE Floats Subtract(Floats a, Floats b, Floats sum) { return _mm256_fnmadd_ps(a, b, sum); }

// The value, computed here: GCC would add integers as a tree, for which the registers do not
// suffice.
LC_INLINE void KeepOrder(Ints& value) { asm("" : "+x"(value)); }

template <class Format, int kCount, int kRows, int kPanels>
LC_INLINE void Dots(const uint8_t* const* levels, const PanelSlice* panels, int64_t first,
                    Ints (&sums)[kRows][kPanels]) {
  // Steps whose 16-bit sums of two products cannot overflow.
  constexpr int kFit = 32767 / (2 * 127 * (Format::kSigned ? 128 : Format::kMost));
  constexpr int kSteps = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  constexpr int kTogether = kSteps < kCount ? kSteps : kCount;
  const Ints ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int begin = 0; begin < kCount; begin += kTogether) {
    Ints pairs[kRows][kPanels];
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i) {
      const int64_t step = first + begin + i;
      Ints x[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        x[p] = panels[p].Levels(step);
        KeepOrder(x[p]);  // one load for all rows
      }
      for (int r = 0; r < kRows; ++r) {
        const Ints w = Four(levels[r] + step * 4);
        for (int p = 0; p < kPanels; ++p) {
          const Ints products =
              kSignedLevels<Format>
                  ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x[p], w))
                  : _mm256_maddubs_epi16(w, x[p]);
          pairs[r][p] = i == 0 ? products : _mm256_add_epi16(pairs[r][p], products);
          KeepOrder(pairs[r][p]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        const Ints quads = _mm256_madd_epi16(pairs[r][p], ones);
        sums[r][p] = begin == 0 ? quads : _mm256_add_epi32(sums[r][p], quads);
        KeepOrder(sums[r][p]);
      }
    }
  }
}
#endif

// Adds `slices` slices of kRows rows of weights and kPanels panels to sums[panel][row][lanes]: one
// chain for every sum, over the units in order.
template <class Format, int kRows, int kPanels>
__attribute__((noinline)) void MultiplyTile(const UnpackedSlice* weights, int64_t row_slices,
                                            const std::byte* panels, int64_t panel_stride,
                                            int64_t slices, bool accumulate, float* sums,
                                            int64_t sums_stride) {
  Floats total[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      total[r][p] = accumulate ? Read<Floats>(sums + p * sums_stride + r * kLanes) : Fill(0);
    }
  }
  for (int64_t s = 0; s < slices; ++s) {
    PanelSlice x[kPanels];
    const uint8_t* levels[kRows];
    for (int p = 0; p < kPanels; ++p) {
      x[p] = {panels + p * panel_stride + s * QuantizedPanel::Bytes(kLanes)};
    }
    for (int r = 0; r < kRows; ++r) levels[r] = weights[r * row_slices + s].levels;
    for (int64_t u = 0; u < kSliceUnits; ++u) {
      constexpr int kGroups = Format::kHalves ? 2 : 1;
      constexpr int kGroupSteps = 8 / kGroups;
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        Ints dots[kRows][kPanels];
        Dots<Format, kGroupSteps>(levels, x, u * 8 + g * kGroupSteps, dots);
        for (int r = 0; r < kRows; ++r) {
          const UnpackedSlice& w = weights[r * row_slices + s];
          const Floats scale = Fill(w.scales[g * kSliceUnits + u]);
          for (int p = 0; p < kPanels; ++p) {
            total[r][p] = Add(ToFloats(dots[r][p]), Times(scale, x[p].Scales(u)), total[r][p]);
            if constexpr (kHasMinimum<Format>) {
              const Floats sum = Format::kHalves ? x[p].Half(u, g) : x[p].Sums(u);
              total[r][p] = Subtract(Fill(w.minima[g * kSliceUnits + u]), sum, total[r][p]);
            }
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      __builtin_memcpy(sums + p * sums_stride + r * kLanes, &total[r][p], sizeof(Floats));
    }
  }
}

template <class Format, int kPanels>
void MultiplyRows(const QuantizedGemmArguments& a, int64_t slices, int64_t panel) {
  const auto* weights = reinterpret_cast<const UnpackedSlice*>(a.unpacked);
  const std::byte* panels = a.panels + panel * a.panel_stride;
  const int64_t sums_stride = a.count * kLanes;
  float* sums = a.sums + panel * sums_stride;
  int64_t r = 0;
  for (; r + kTileRows <= a.count; r += kTileRows) {
    MultiplyTile<Format, kTileRows, kPanels>(weights + r * slices, slices, panels, a.panel_stride,
                                             slices, a.accumulate, sums + r * kLanes, sums_stride);
  }
  for (; r < a.count; ++r) {
    MultiplyTile<Format, 1, kPanels>(weights + r * slices, slices, panels, a.panel_stride, slices,
                                     a.accumulate, sums + r * kLanes, sums_stride);
  }
}

template <class Format>
void GemmPanels(const QuantizedGemmArguments& a) {
  const int64_t slices = (a.depth + kSliceValues - 1) / kSliceValues;
  const int64_t whole = a.depth / kSliceValues;
  const int64_t rest = a.depth % kSliceValues / Format::kValues * Format::kBytes;
  auto* unpacked = reinterpret_cast<UnpackedSlice*>(a.unpacked);
  for (int64_t r = 0; r < a.count; ++r, unpacked += slices) {
    const std::byte* row = a.weight + r * a.row_bytes;
    for (int64_t s = 0; s < whole; ++s) {
      Prefetch<Format>(row + s * Format::kSliceBytes);
      StoreSlice<Format>(row + s * Format::kSliceBytes, unpacked + s);
    }
    if (rest > 0) {  // blocks of 32: the others of the slice are zero
      std::byte padded[Format::kSliceBytes] = {};
      __builtin_memcpy(padded, row + whole * Format::kSliceBytes, static_cast<size_t>(rest));
      StoreSlice<Format>(padded, unpacked + whole);
    }
  }
  int64_t panel = 0;
  for (; panel + kTilePanels <= a.panel_count; panel += kTilePanels) {
    MultiplyRows<Format, kTilePanels>(a, slices, panel);
  }
  for (; panel < a.panel_count; ++panel) MultiplyRows<Format, 1>(a, slices, panel);
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
