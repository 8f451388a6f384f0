// The widest registers of a set of instructions, and what kernels do with them. Included once for
// each set, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

#if defined(LC_QUANTIZED_VNNI)
using Ints = __m512i;
using Floats = __m512;
#else
using Ints = __m256i;
using Floats = __m256;
#endif
constexpr int64_t kLanes = sizeof(Ints) / 4;

// The value, computed here and in a register: GCC would copy sums to the stack in every step, and
// would add integers as a tree, for which the registers do not suffice.
LC_INLINE void KeepInRegister(Ints& value) { asm("" : "+v"(value)); }

#if defined(LC_QUANTIZED_VNNI)
LC_INLINE Ints Pair(const int16_t* levels) { return _mm512_set1_epi32(Read<int32_t>(levels)); }
LC_INLINE Ints NoInts() { return _mm512_setzero_si512(); }
LC_INLINE void AddProducts(Ints w, Ints x, Ints& sum) {
  sum = _mm512_dpwssd_epi32(sum, w, x);
  KeepInRegister(sum);
}
LC_INLINE Floats Fill(float v) { return _mm512_set1_ps(v); }
LC_INLINE Floats ToFloats(Ints v) { return _mm512_cvtepi32_ps(v); }
LC_INLINE Floats Add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
LC_INLINE Floats Subtract(Floats a, Floats b, Floats sum) { return _mm512_fnmadd_ps(a, b, sum); }
#else
LC_INLINE Ints Pair(const int16_t* levels) { return _mm256_set1_epi32(Read<int32_t>(levels)); }
LC_INLINE Ints NoInts() { return _mm256_setzero_si256(); }
LC_INLINE void AddProducts(Ints w, Ints x, Ints& sum) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
  KeepInRegister(sum);
}
LC_INLINE Floats Fill(float v) { return _mm256_set1_ps(v); }
LC_INLINE Floats ToFloats(Ints v) { return _mm256_cvtepi32_ps(v); }
LC_INLINE Floats Add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
LC_INLINE Floats Subtract(Floats a, Floats b, Floats sum) { return _mm256_fnmadd_ps(a, b, sum); }
#endif

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
