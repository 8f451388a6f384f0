// Products with a few rows of x: every row of weights is unpacked into registers and multiplied
// with each row of x. Included once for each set of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Sums of four products each, exact in 32 bits.
LC_INLINE __m256i DotUnit(const Words& w, const int16_t* x) {
  const auto even = Read<__m256i>(x), odd = Read<__m256i>(x + kUnitValues / 2);
  const __m256i pairs = _mm256_madd_epi16(w.even, even);
#if defined(LC_QUANTIZED_VNNI)
  return _mm256_dpwssd_epi32(pairs, w.odd, odd);
#else
  return _mm256_add_epi32(pairs, _mm256_madd_epi16(w.odd, odd));
#endif
}

LC_INLINE float Total(__m256 v) {
  const __m128 quads = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pairs = _mm_add_ps(quads, _mm_movehl_ps(quads, quads));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}

// Sums of pairs of lanes of `a` and of `b`, side by side.
LC_INLINE __m256i SumPairs(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

// The sums of four units: of their halves of 16 values in lanes 0 to 3 and 4 to 7. They take one
// conversion and one scaling.
LC_INLINE __m256 UnitSums(const __m256i (&dots)[4]) {
  const __m256i first = SumPairs(dots[0], dots[1]), last = SumPairs(dots[2], dots[3]);
  return _mm256_cvtepi32_ps(
      _mm256_add_epi32(_mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last)));
}

// The scales of 8 units, or of 16 half units.
template <class Format>
LC_INLINE void Scales(const Slice& w, __m256 (&scales)[2]) {
  const auto scale = [&](__m128i multiples) __attribute__((always_inline)) {
    return _mm256_mul_ps(_mm256_set1_ps(w.unit),
                         _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(multiples)));
  };
  scales[0] = Format::kMultiples == 0 ? w.scale : scale(_mm256_castsi256_si128(w.multiples));
  if constexpr (Format::kMultiples == 16) {
    scales[1] = scale(_mm256_extracti128_si256(w.multiples, 1));
  }
}

// Adds a slice's products to the sums of kTokens rows of x: chains of 8 lanes, over the units in
// order.
template <class Format, int kTokens>
LC_INLINE void AddSlice(const std::byte* block, const QuantizedRows& x, int64_t slice,
                        __m256 (&sums)[kTokens][2]) {
  constexpr bool kHalves = Format::kMultiples == 16;
  Slice w;
  Format::Unpack(block, w);
  __m256 scales[2];
  Scales<Format>(w, scales);
  __m256 parts[kTokens];
#pragma GCC unroll 2
  for (int four = 0; four < 2; ++four) {
    // In the lanes of UnitSums.
    const __m256 scale =
        kHalves ? _mm256_permutevar8x32_ps(scales[four], _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
                : _mm256_permute2f128_ps(scales[0], scales[0], four == 0 ? 0x00 : 0x11);
    Words words[4];
    for (int u = 0; u < 4; ++u) words[u] = Widen<Format>(w.levels[4 * four + u]);
    for (int t = 0; t < kTokens; ++t) {
      const int16_t* levels =
          x.levels + (t * x.slices + slice) * kSliceValues + 4 * four * kUnitValues;
      __m256i dots[4];
      for (int u = 0; u < 4; ++u) dots[u] = DotUnit(words[u], levels + u * kUnitValues);
      parts[t] = four == 0 ? _mm256_mul_ps(UnitSums(dots), scale)
                           : _mm256_fmadd_ps(UnitSums(dots), scale, parts[t]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    const SliceFactors& factors = x.factors[t * x.slices + slice];
    sums[t][0] = _mm256_fmadd_ps(parts[t], _mm256_set1_ps(factors.scale), sums[t][0]);
    if constexpr (Format::kOffset > 0 || Format::kMinima > 0) {
      for (int i = 0; i < (kHalves ? 2 : 1); ++i) {
        const __m256 minima = Format::kMinima > 0
                                  ? w.minima[i]
                                  : _mm256_mul_ps(scales[i], _mm256_set1_ps(Format::kOffset));
        const float* x_sums = kHalves ? factors.halves + 8 * i : factors.sums;
        sums[t][1] = _mm256_fnmadd_ps(minima, _mm256_loadu_ps(x_sums), sums[t][1]);
      }
    }
  }
}

template <class Format, int kTokens>
__attribute__((noinline)) void GemvRows(const QuantizedGemvArguments& a) {
  const int64_t slices = a.depth / kSliceValues;
  const int64_t rest = a.depth % kSliceValues / Format::kValues * Format::kBytes;
  for (int64_t r = 0; r < a.count; ++r) {
    const std::byte* row = a.weight + r * a.row_bytes;
    __m256 sums[kTokens][2];
    for (int t = 0; t < kTokens; ++t) sums[t][0] = sums[t][1] = _mm256_setzero_ps();
    for (int64_t s = 0; s < slices; ++s, row += Format::kSliceBytes) {
      Prefetch<Format>(row);
      AddSlice<Format, kTokens>(row, a.x, s, sums);
    }
    if (rest > 0) {  // blocks of 32: the others of the slice are zero
      std::byte padded[Format::kSliceBytes] = {};
      __builtin_memcpy(padded, row, static_cast<size_t>(rest));
      AddSlice<Format, kTokens>(padded, a.x, slices, sums);
    }
    for (int t = 0; t < kTokens; ++t) {
      a.sums[t * a.sums_stride + r] = Total(_mm256_add_ps(sums[t][0], sums[t][1]));
    }
  }
}

template <class Format>
void GemvTokens(QuantizedGemvArguments a) {
  constexpr int64_t kMost = 4;  // for whose sums the registers suffice
  for (; a.tokens > kMost; a.tokens -= kMost) {
    GemvRows<Format, kMost>(a);
    a.x.levels += kMost * a.x.slices * kSliceValues;
    a.x.factors += kMost * a.x.slices;
    a.sums += kMost * a.sums_stride;
  }
  if (a.tokens == 1) return GemvRows<Format, 1>(a);
  if (a.tokens == 2) return GemvRows<Format, 2>(a);
  if (a.tokens == 3) return GemvRows<Format, 3>(a);
  GemvRows<Format, kMost>(a);
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
