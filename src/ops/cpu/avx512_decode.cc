// Attention of one token's query heads over BF16 rows. The panels of avx512.cc would use as many of
// their 16 lanes as a group has heads (often 4); here lanes are the head's elements, which takes a
// quarter of the instructions a row and leaves reading the rows as the bound.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/cpu/avx512.h"
#include "ops/cpu/avx512_target.h"
#include "ops/cpu/exp2_polynomial.h"

#if defined(__x86_64__)

LC_BEGIN_AVX512
namespace litecache::ops::cpu {
namespace {

// Lane r of the result is the sum of v[r]'s lanes.
inline __m512 SumRows16(const __m512 v[16]) {
  __m512 pairs[8], quads[4], halves[2];
  for (int i = 0; i < 8; ++i) {
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  for (int i = 0; i < 2; ++i) {
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                              _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                       _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// 2^x for x <= 0; NaN stays NaN.
inline __m512 Exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), _mm512_min_ps(_mm512_setzero_ps(), x));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(kExp2Polynomial[0]);
  for (int i = 1; i < 5; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2Polynomial[i]));
  return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f)), n);
}

inline __m512bh LoadPairs(const std::byte* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

// Online softmax of one head's scores of a tile; probabilities rounded to bf16, zero behind the
// tile's end.
void Softmax(const float* scores, int64_t count, int64_t head_dim, float* maximum, float* sum,
             float* out, uint16_t* probabilities) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const auto mask_of = [&](int64_t i) {
    const int64_t left = std::clamp<int64_t>(count - i, 0, 16);
    return static_cast<__mmask16>((1u << left) - 1);
  };
  __m512 highest = _mm512_set1_ps(-kLargest);
  for (int64_t i = 0; i < kDecodeTileRows; i += 16) {
    highest = _mm512_mask_max_ps(highest, mask_of(i), highest, _mm512_load_ps(scores + i));
  }
  // Finite, so that two infinities never meet in a difference.
  const float next = std::min(std::max(*maximum, _mm512_reduce_max_ps(highest)), kLargest);
  const __m512 shift = _mm512_set1_ps(next);
  __m512 total = _mm512_setzero_ps();
  for (int64_t i = 0; i < kDecodeTileRows; i += 16) {
    const __m512 p =
        _mm512_maskz_mov_ps(mask_of(i), Exp2(_mm512_sub_ps(_mm512_load_ps(scores + i), shift)));
    total = _mm512_add_ps(total, p);
    _mm256_store_si256(reinterpret_cast<__m256i*>(probabilities + i),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
  }
  const __m512 factor = Exp2(_mm512_set1_ps(*maximum - next));
  const float scale = _mm512_cvtss_f32(factor);
  *sum = *sum * scale + _mm512_reduce_add_ps(total);
  *maximum = next;
  if (scale == 1.0f) return;
  for (int64_t c = 0; c < head_dim; c += 16) {
    _mm512_store_ps(out + c, _mm512_mul_ps(_mm512_load_ps(out + c), factor));
  }
}

// out[h][0, 32 * kChunks) += probabilities of kHeads heads times the same columns of V.
template <int kHeads, int kChunks>
void AccumulateColumns(const std::byte* const* v_rows, int64_t offset, int64_t count,
                       const uint16_t* probabilities, int64_t head_dim, float* out) {
  const __m512i low = _mm512_load_si512(kInterleave.data());
  const __m512i high = _mm512_load_si512(kInterleave.data() + 32);
  __m512 sum[kHeads][2 * kChunks];
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < 2 * kChunks; ++c) sum[h][c] = _mm512_load_ps(out + h * head_dim + 16 * c);
  }
  for (int64_t r = 0; r < count; r += 2) {
    const std::byte* first = v_rows[r] + offset;
    // An odd last row is its own partner, with probability 0.
    const std::byte* second = v_rows[std::min(r + 1, count - 1)] + offset;
    __m512bh pairs[2 * kChunks];
    for (int c = 0; c < kChunks; ++c) {
      const __m512i a = _mm512_loadu_si512(first + 64 * c), b = _mm512_loadu_si512(second + 64 * c);
      pairs[2 * c] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, low, b));
      pairs[2 * c + 1] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, high, b));
    }
    for (int h = 0; h < kHeads; ++h) {
      int32_t p;
      std::memcpy(&p, probabilities + h * kDecodeTileRows + r, sizeof(p));
      const auto broadcast = reinterpret_cast<__m512bh>(_mm512_set1_epi32(p));
      for (int c = 0; c < 2 * kChunks; ++c) {
        sum[h][c] = _mm512_dpbf16_ps(sum[h][c], pairs[c], broadcast);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < 2 * kChunks; ++c) _mm512_store_ps(out + h * head_dim + 16 * c, sum[h][c]);
  }
}

template <int kHeads>
void AccumulateHeads(const std::byte* const* rows, int64_t count, int64_t head_dim,
                     const uint16_t* probabilities, float* out) {
  // K comes first in a row.
  const int64_t v = head_dim * 2;
  int64_t c = 0;
  for (; c + 64 <= head_dim; c += 64) {
    AccumulateColumns<kHeads, 2>(rows, v + c * 2, count, probabilities, head_dim, out + c);
  }
  if (c < head_dim) {
    AccumulateColumns<kHeads, 1>(rows, v + c * 2, count, probabilities, head_dim, out + c);
  }
}

}  // namespace

void Avx512DecodeTile(const std::byte* const* rows, int64_t count, int64_t head_dim,
                      const void* queries, int64_t heads, float* maximum, float* sum, float* out) {
  alignas(64) float scores[kDecodeTileRows];
  alignas(64) uint16_t probabilities[kMaxDecodeHeads][kDecodeTileRows];
  const auto* q = static_cast<const std::byte*>(queries);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < kDecodeTileRows; i += 16) {
      __m512 dots[16];
      for (int64_t r = 0; r < 16; ++r) {
        const std::byte* row = rows[std::min(i + r, count - 1)];
        dots[r] = _mm512_setzero_ps();
        for (int64_t c = 0; c < head_dim; c += 32) {
          dots[r] = _mm512_dpbf16_ps(dots[r], LoadPairs(q + (h * head_dim + c) * 2),
                                     LoadPairs(row + c * 2));
        }
      }
      _mm512_store_ps(scores + i, SumRows16(dots));
      if (i + 16 >= count) break;
    }
    Softmax(scores, count, head_dim, maximum + h, sum + h, out + h * head_dim, probabilities[h]);
  }
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) {
    AccumulateHeads<4>(rows, count, head_dim, probabilities[h], out + h * head_dim);
  }
  for (; h < heads; ++h) {
    AccumulateHeads<1>(rows, count, head_dim, probabilities[h], out + h * head_dim);
  }
}

}  // namespace litecache::ops::cpu
LC_END_AVX512

#else  // not x86-64

namespace litecache::ops::cpu {
void Avx512DecodeTile(const std::byte* const*, int64_t, int64_t, const void*, int64_t, float*,
                      float*, float*) {
  LC_CHECK(false, "no AVX-512 on this architecture");
}
}  // namespace litecache::ops::cpu

#endif
