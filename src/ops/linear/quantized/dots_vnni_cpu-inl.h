// A slice's products with a few rows of x as pairs of bytes, x = 128 * high + low. Bytes of weights
// are multiplied as they are: widening them costs as much as the second product. Included by
// kernels_cpu-inl.h for AVX-512 with VNNI.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Two units are multiplied at once: of four units the first and the third, then the others, which
// is how halves of Q4_K's bytes come.
constexpr int64_t kPairValues = 2 * kUnitValues;
constexpr int kPairs = kSliceUnits / 2;
constexpr int FirstUnit(int pair) { return pair / 2 * 4 + pair % 2; }

LC_INLINE __m512i Join(__m256i a, __m256i b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

LC_INLINE __m512i Twice(const std::byte* data) { return _mm512_broadcast_i64x4(Load32(data)); }
LC_INLINE __m512i Shifts(int first, int second) {
  return Join(_mm256_set1_epi32(first), _mm256_set1_epi32(second));
}

// QuantizedKernels::arrange: of each pair of units the 64 low bytes, then the 64 high ones. Low
// bytes have no sign. Signed weights are multiplied with 128 added, whose share of the product is
// what `quads` takes from the high bytes' sums of four.
inline void Arrange(int16_t* levels, int32_t* quads) {
  const __m256i byte = _mm256_set1_epi16(255), seven = _mm256_set1_epi16(127);
  const __m256i minus = _mm256_set1_epi16(-1);
  __m512i arranged[2 * kPairs];
  for (int p = 0; p < kPairs; ++p) {
    __m256i low[2], high[2], sums[2];
    for (int i = 0; i < 2; ++i) {
      const int16_t* unit = levels + (FirstUnit(p) + 2 * i) * kUnitValues;
      const auto even = Read<__m256i>(unit), odd = Read<__m256i>(unit + kUnitValues / 2);
      low[i] = _mm256_or_si256(_mm256_and_si256(even, seven),
                               _mm256_slli_epi16(_mm256_and_si256(odd, seven), 8));
      high[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srai_epi16(even, 7), byte),
                                _mm256_slli_epi16(_mm256_srai_epi16(odd, 7), 8));
      sums[i] = _mm256_add_epi32(_mm256_madd_epi16(even, minus), _mm256_madd_epi16(odd, minus));
    }
    arranged[2 * p] = Join(low[0], low[1]);
    arranged[2 * p + 1] = Join(high[0], high[1]);
    _mm512_storeu_si512(quads + p * kPairValues / 4, Join(sums[0], sums[1]));
  }
  __builtin_memcpy(levels, arranged, sizeof(arranged));
}

// Levels of pairs of units, without a sign: Q4_K's and Q6_K's, of which files of 4 bits mostly
// consist, in wide registers from the start.
template <class Format>
LC_INLINE void PairLevels(const std::byte* block, const Slice& w, __m512i (&levels)[kPairs]) {
  if constexpr (std::is_same_v<Format, Q4_K>) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 2; ++i) {
      const auto bytes = Read<__m512i>(block + 16 + i * 64);
      levels[2 * i] = _mm512_and_si512(bytes, low);
      levels[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
    }
  } else if constexpr (std::is_same_v<Format, Q6_K>) {
    for (int p = 0; p < kPairs; ++p) {
      const __m512i four = _mm512_and_si512(_mm512_srlv_epi32(Twice(block + p * 32), Shifts(0, 4)),
                                            _mm512_set1_epi8(15));
      const __m512i two = _mm512_rolv_epi32(Twice(block + 128 + p / 2 * 32),
                                            p % 2 == 0 ? Shifts(4, 0) : Shifts(2, 30));
      constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
      levels[p] = _mm512_ternarylogic_epi32(four, two, _mm512_set1_epi8(0x30), kFirstOrBoth);
    }
  } else {
    for (int p = 0; p < kPairs; ++p) {
      levels[p] = Join(w.levels[FirstUnit(p)], w.levels[FirstUnit(p) + 2]);
      if (Format::kSigned) levels[p] = _mm512_xor_si512(levels[p], _mm512_set1_epi8(-128));
    }
  }
}

// A slice's products with kTokens rows of x, scaled with the weights' scales. Sums of four products
// are exact in 32 bits, and in f32.
template <class Format, int kTokens>
LC_INLINE void MultiplySlice(const std::byte* block, const Slice& w, const __m256 (&scales)[2],
                             const QuantizedRows& x, int64_t slice, Floats (&parts)[kTokens]) {
  constexpr bool kHalves = Format::kMultiples == 16;
  const __m512 all =
      _mm512_insertf32x8(_mm512_castps256_ps512(scales[0]), kHalves ? scales[1] : scales[0], 1);
  const __m512i first = kHalves ? _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 4, 4, 4, 4, 5, 5, 5, 5)
                                : _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
  __m512i weights[kPairs];
  PairLevels<Format>(block, w, weights);
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
    const __m512 scale = _mm512_permutexvar_ps(
        _mm512_add_epi32(first, _mm512_set1_epi32(FirstUnit(p) * (kHalves ? 2 : 1))), all);
    for (int t = 0; t < kTokens; ++t) {
      const int64_t at = (t * x.slices + slice) * kSliceValues + p * kPairValues;
      const auto low = Read<__m512i>(x.levels + at);
      const auto high = Read<__m512i>(x.levels + at + kUnitValues);
      const __m512i none =
          Format::kSigned ? Read<__m512i>(x.quads + at / 4) : _mm512_setzero_si512();
      const __m512i dots = _mm512_dpbusd_epi32(
          _mm512_slli_epi32(_mm512_dpbusd_epi32(none, weights[p], high), 7), weights[p], low);
      parts[t] = p == 0 ? _mm512_mul_ps(ToFloats(dots), scale)
                        : _mm512_fmadd_ps(ToFloats(dots), scale, parts[t]);
    }
  }
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
