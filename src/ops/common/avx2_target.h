// Brackets for code that uses AVX2 (with FMA and F16C), or AVX-512 with VNNI, in intrinsics: as
// LC_BEGIN_AVX512 of avx512_target.h, include everything before.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

// clang-format off
#if defined(__clang__)
#define LC_BEGIN_AVX2 \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define LC_END_AVX2 _Pragma("clang attribute pop")
#define LC_BEGIN_AVX512_VNNI \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c\"))), apply_to = function)")
#define LC_END_AVX512_VNNI _Pragma("clang attribute pop")
#else
// GCC 12 reports its own _mm512_undefined_*() as a use of uninitialized memory (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define LC_BEGIN_AVX2 \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx2,fma,f16c\")")
#define LC_END_AVX2 _Pragma("GCC pop_options")
#define LC_BEGIN_AVX512_VNNI \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c\")")
#define LC_END_AVX512_VNNI _Pragma("GCC pop_options")
#endif
// clang-format on

#endif
