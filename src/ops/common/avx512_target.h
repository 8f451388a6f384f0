// Brackets for code that uses AVX-512 instructions. The instructions are enabled inside only, so
// that no inline function of a header is compiled with them and then chosen by the linker for all
// callers: include everything before LC_BEGIN_AVX512.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

// _Pragma takes one literal, which no line break may split.
// clang-format off
#if defined(__clang__)
#define LC_BEGIN_AVX512 \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16\"))), apply_to = function)")
#define LC_END_AVX512 _Pragma("clang attribute pop")
#else
// GCC 12 reports its own _mm512_undefined_*() as a use of uninitialized memory (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define LC_BEGIN_AVX512 \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16\")")
#define LC_END_AVX512 _Pragma("GCC pop_options")
#endif
// clang-format on

#endif
