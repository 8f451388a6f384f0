// A slice's products with a few rows of x in 16 bits. Included by kernels_cpu-inl.h for AVX2.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Sums of four products each, exact in 32 bits.
LC_INLINE __m256i DotUnit(const Words& w, const int16_t* x) {
  const auto even = Read<__m256i>(x), odd = Read<__m256i>(x + kUnitValues / 2);
  return _mm256_add_epi32(_mm256_madd_epi16(w.even, even), _mm256_madd_epi16(w.odd, odd));
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

// A slice's products with kTokens rows of x, scaled with the weights' scales.
template <class Format, int kTokens>
LC_INLINE void MultiplySlice(const std::byte* /*block*/, const Slice& w, const __m256 (&scales)[2],
                             const QuantizedRows& x, int64_t slice, Floats (&parts)[kTokens]) {
#pragma GCC unroll 2
  for (int four = 0; four < 2; ++four) {
    // In the lanes of UnitSums.
    const __m256 scale =
        Format::kMultiples == 16
            ? _mm256_permutevar8x32_ps(scales[four], _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
        : four == 0 ? _mm256_permute2f128_ps(scales[0], scales[0], 0x00)
                    : _mm256_permute2f128_ps(scales[0], scales[0], 0x11);
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
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
