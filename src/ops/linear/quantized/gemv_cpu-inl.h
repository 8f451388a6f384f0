// Products with a few rows of x: every row of weights is unpacked into registers and multiplied
// with each row of x. Included once for each set of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Sums of four products each, exact in 32 bits.
LC_INLINE __m256i DotUnit(const Words& w, const int16_t* x) {
  const auto even = Read<__m256i>(x), odd = Read<__m256i>(x + kUnitValues / 2);
#if defined(LC_QUANTIZED_VNNI)
  return _mm256_dpwssd_epi32(_mm256_dpwssd_epi32(_mm256_setzero_si256(), w.even, even), w.odd, odd);
#else
  return _mm256_add_epi32(_mm256_madd_epi16(w.even, even), _mm256_madd_epi16(w.odd, odd));
#endif
}

LC_INLINE float Total(__m256 v) {
  const __m128 quads = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pairs = _mm_add_ps(quads, _mm_movehl_ps(quads, quads));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}

// The scales of 8 units, or of 16 half units.
template <class Format>
LC_INLINE void Scales(const Slice& w, __m256 (&scales)[2]) {
  const auto scale = [&](__m128i multiples) __attribute__((always_inline)) {
    return _mm256_mul_ps(_mm256_set1_ps(w.unit),
                         _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(multiples)));
  };
  scales[0] = Format::kMultiples == 0 ? w.scale : scale(_mm256_castsi256_si128(w.multiples));
  if constexpr (Format::kMultiples == 16)
    scales[1] = scale(_mm256_extracti128_si256(w.multiples, 1));
}

// Adds a slice's products to the sums of kTokens rows of x: two chains of 8 lanes each, over the
// units in order.
template <class Format, int kTokens>
LC_INLINE void AddSlice(const std::byte* block, const QuantizedRows& x, int64_t slice,
                        __m256 (&sums)[kTokens][2]) {
  constexpr bool kHalves = Format::kMultiples == 16;
  Slice w;
  Format::Unpack(block, w);
  __m256 scales[2];
  Scales<Format>(w, scales);
  alignas(32) float of_units[kSliceUnits];
  if constexpr (!kHalves) _mm256_store_ps(of_units, scales[0]);
  __m256 parts[kTokens][2];
  for (int t = 0; t < kTokens; ++t) parts[t][0] = parts[t][1] = _mm256_setzero_ps();
#pragma GCC unroll 8
  for (int u = 0; u < kSliceUnits; ++u) {
    __m256 scale;
    if constexpr (kHalves) {
      const int even = u % 4 * 2, odd = even + 1;
      scale = _mm256_permutevar8x32_ps(
          scales[u / 4], _mm256_setr_epi32(even, even, even, even, odd, odd, odd, odd));
    } else {
      scale = _mm256_broadcast_ss(&of_units[u]);
    }
    const Words words = Widen<Format>(w.levels[u]);
    for (int t = 0; t < kTokens; ++t) {
      const int16_t* levels = x.levels + (t * x.slices + slice) * kSliceValues + u * kUnitValues;
      parts[t][u % 2] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(DotUnit(words, levels)), scale, parts[t][u % 2]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    const SliceFactors& factors = x.factors[t * x.slices + slice];
    sums[t][0] = _mm256_fmadd_ps(_mm256_add_ps(parts[t][0], parts[t][1]),
                                 _mm256_set1_ps(factors.scale), sums[t][0]);
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
void GemvTokens(const QuantizedGemvArguments& a) {
  if (a.tokens == 1) return GemvRows<Format, 1>(a);
  if (a.tokens == 2) return GemvRows<Format, 2>(a);
  if (a.tokens == 3) return GemvRows<Format, 3>(a);
  GemvRows<Format, 4>(a);
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
