// Products with a few rows of x: every row of weights is unpacked into registers and multiplied
// with each row of x. Included once for each set of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

#if defined(LC_QUANTIZED_VNNI)
LC_INLINE __m256 Fold(__m512 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
#else
LC_INLINE __m256 Fold(__m256 v) { return v; }
#endif

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
  if constexpr (Format::kMultiples == 16) {
    scales[1] = scale(_mm256_extracti128_si256(w.multiples, 1));
  }
}

// Of one row of weights and one of x.
struct RowSums {
  Floats products;
  __m256 minima;
};

// Adds a slice's products to the sums of kTokens rows of x: a chain in each lane, over the slices
// in order.
template <class Format, int kTokens>
LC_INLINE void AddSlice(const std::byte* block, const QuantizedRows& x, int64_t slice,
                        RowSums (&sums)[kTokens]) {
  constexpr bool kHalves = Format::kMultiples == 16;
  Slice w;
  Format::Unpack(block, w);
  __m256 scales[2];
  Scales<Format>(w, scales);
  Floats parts[kTokens];
  MultiplySlice<Format, kTokens>(block, w, scales, x, slice, parts);
  for (int t = 0; t < kTokens; ++t) {
    const SliceFactors& factors = x.factors[t * x.slices + slice];
    sums[t].products = Add(parts[t], Fill(factors.scale), sums[t].products);
    if constexpr (Format::kOffset > 0 || Format::kMinima > 0) {
      for (int i = 0; i < (kHalves ? 2 : 1); ++i) {
        const __m256 minima = Format::kMinima > 0
                                  ? w.minima[i]
                                  : _mm256_mul_ps(scales[i], _mm256_set1_ps(Format::kOffset));
        const float* x_sums = kHalves ? factors.halves + 8 * i : factors.sums;
        sums[t].minima = _mm256_fnmadd_ps(minima, _mm256_loadu_ps(x_sums), sums[t].minima);
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
    RowSums sums[kTokens];
    for (RowSums& s : sums) s = {Fill(0), _mm256_setzero_ps()};
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
      a.sums[t * a.sums_stride + r] = Total(_mm256_add_ps(Fold(sums[t].products), sums[t].minima));
    }
  }
}

template <class Format>
void GemvTokens(QuantizedGemvArguments a) {
  constexpr int64_t kMost = 4;  // for whose sums the registers suffice
  for (; a.tokens > kMost; a.tokens -= kMost) {
    GemvRows<Format, kMost>(a);
    a.x.levels += kMost * a.x.slices * kSliceValues;
    a.x.quads += kMost * a.x.slices * kSliceQuads;
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
