// Products with a few rows of x: every row of weights is unpacked into registers and multiplied
// with each row of x. Included once for each set of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Sums of four products each of unsigned and signed bytes.
LC_INLINE __m256i DotBytes(__m256i u, __m256i s) {
#if defined(LC_QUANTIZED_VNNI)
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s);
#else
  return _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
#endif
}

LC_INLINE float Total(__m256 v) {
  const __m128 quads = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pairs = _mm_add_ps(quads, _mm_movehl_ps(quads, quads));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}

// Adds a slice's products to the sums of kTokens rows of x: two chains of 8 lanes each, over the
// units in order.
template <class Format, int kTokens>
LC_INLINE void AddSlice(const std::byte* block, const QuantizedRows& x, int64_t slice,
                        __m256 (&sums)[kTokens][2]) {
  Slice w;
  Format::Unpack(block, w);
  alignas(32) float factors[kTokens][8];
  const int64_t units = x.stride / kUnitValues;
  for (int t = 0; t < kTokens; ++t) {
    const int64_t at = t * units + slice * kSliceUnits;
    const __m256 scales = _mm256_load_ps(x.scales + at);
    _mm256_store_ps(factors[t], _mm256_mul_ps(Format::kHalves ? w.unit : w.scale, scales));
    if constexpr (Format::kHalves) {
      for (int i = 0; i < 2; ++i) {
        sums[t][i] = _mm256_fnmadd_ps(w.half_minima[i], _mm256_load_ps(x.halves + 2 * at + 8 * i),
                                      sums[t][i]);
      }
    } else if constexpr (Format::kMinimum) {
      sums[t][0] = _mm256_fnmadd_ps(w.minimum, _mm256_load_ps(x.sums + at), sums[t][0]);
    }
  }
  const int8_t* levels = x.levels + slice * kSliceValues;
#pragma GCC unroll 8
  for (int u = 0; u < 8; ++u) {
    const __m256i q = w.levels[u];
    [[maybe_unused]] __m256i magnitudes, multiples;
    if constexpr (Format::kSigned) magnitudes = _mm256_abs_epi8(q);
    if constexpr (Format::kHalves) {
      const __m256i pick = _mm256_set1_epi16(static_cast<int16_t>(0x0100 + 0x0202 * u));
      multiples = _mm256_shuffle_epi8(w.multiples, pick);
    }
    for (int t = 0; t < kTokens; ++t) {
      const __m256i v = _mm256_load_si256(
          reinterpret_cast<const __m256i*>(levels + t * x.stride + u * kUnitValues));
      __m256i dots;
      if constexpr (Format::kHalves) {
        dots = _mm256_madd_epi16(_mm256_maddubs_epi16(q, v), multiples);
      } else if constexpr (Format::kSigned) {
        dots = DotBytes(magnitudes, _mm256_sign_epi8(v, q));
      } else {
        dots = DotBytes(q, v);
      }
      sums[t][u % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots),
                                       _mm256_broadcast_ss(&factors[t][u]), sums[t][u % 2]);
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
