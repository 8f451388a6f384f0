// Attention of one token's query heads over bf16 rows. The panels of avx512.cc would fill only as
// many of their 16 lanes as a group has heads (often 4); here lanes are the head's elements, which
// takes a quarter of the instructions per row, so that reading the rows is the bottleneck.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/common/avx512.h"
#include "ops/common/avx512_sum-inl.h"
#include "ops/common/avx512_target.h"
#include "ops/common/exp2_polynomial.h"
#include "ops/dense/soft_cap_cpu.h"

#if defined(__x86_64__)

LC_BEGIN_AVX512
namespace litecache::ops::cpu {
namespace {

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

// Online softmax of one head's scores of a tile; probabilities are rounded to bf16 and zero behind
// the tile's end.
void TileSoftmax(const float* scores, int64_t count, int64_t head_dim, float* maximum, float* sum,
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
  // Kept finite, so that infinities are never subtracted.
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

// Prefetches the rows of the next tile, a few at a time between the arithmetic: a burst for a whole
// tile would stall. Prefetches whole rows: a row's lines are in one DRAM page, which takes as long
// to open for half a row.
class Ahead {
 public:
  Ahead(const std::byte* const* rows, int64_t count, int64_t row_bytes)
      : rows_(rows), end_(rows + count), row_bytes_(row_bytes) {}
  void Ask(int64_t count) {
    for (; count > 0 && rows_ < end_; --count, ++rows_) {
      for (int64_t i = 0; i < row_bytes_; i += 64) __builtin_prefetch(*rows_ + i, 0, 3);
    }
  }

 private:
  const std::byte* const* rows_;
  const std::byte* const* end_;
  int64_t row_bytes_;
};

// Scores of kHeads heads and 16 / kHeads rows: lanes are [head][row]. A row is read once for all
// heads, and 16 dot products are summed across lanes at once. kChunks: head_dim / 32, or 0 for any.
template <int kHeads, int kChunks>
inline __m512 Dots(const std::byte* const* rows, const std::byte* q, int64_t head_dim) {
  constexpr int kRows = 16 / kHeads;
  const int64_t chunks = kChunks > 0 ? kChunks : head_dim / 32;
  __m512 dots[16];
  for (int i = 0; i < 16; ++i) dots[i] = _mm512_setzero_ps();
  for (int64_t c = 0; c < chunks; ++c) {
    for (int r = 0; r < kRows; ++r) {
      const __m512bh k = LoadPairs(rows[r] + 64 * c);
      for (int h = 0; h < kHeads; ++h) {
        const __m512bh x = LoadPairs(q + (h * head_dim + 32 * c) * 2);
        dots[h * kRows + r] = _mm512_dpbf16_ps(dots[h * kRows + r], x, k);
      }
    }
  }
  return SumRows16(dots);
}

template <int kHeads, int kChunks>
void ScoreHeads(const std::byte* const* rows, int64_t count, Ahead& ahead, const std::byte* q,
                int64_t head_dim, float* scores) {
  constexpr int64_t kRows = 16 / kHeads;
  for (int64_t i = 0; i < count; i += kRows) {
    ahead.Ask(kRows / 2);
    const __m512 dots = Dots<kHeads, kChunks>(rows + i, q, head_dim);
    if constexpr (kHeads == 1) {
      _mm512_store_ps(scores + i, dots);
    } else if constexpr (kHeads == 2) {
      _mm256_store_ps(scores + i, _mm512_castps512_ps256(dots));
      _mm256_store_ps(scores + kDecodeTileRows + i, _mm512_extractf32x8_ps(dots, 1));
    } else {
      _mm_store_ps(scores + i, _mm512_castps512_ps128(dots));
      _mm_store_ps(scores + kDecodeTileRows + i, _mm512_extractf32x4_ps(dots, 1));
      _mm_store_ps(scores + 2 * kDecodeTileRows + i, _mm512_extractf32x4_ps(dots, 2));
      _mm_store_ps(scores + 3 * kDecodeTileRows + i, _mm512_extractf32x4_ps(dots, 3));
    }
  }
}

// The order of 32 columns after unpacking two rows: the lower halves of all 128-bit lanes, then the
// upper halves. Unpacking takes one step; interleaving whole vectors takes up to three.
struct alignas(64) Columns : std::array<int32_t, 32> {};
constexpr Columns MakeColumns(bool to_unpacked) {
  Columns columns{};
  for (int i = 0; i < 32; ++i) {
    // Unpacked element i = 16 * half + 4 * lane + j is column 8 * lane + 4 * half + j.
    const int column = i % 16 / 4 * 8 + i / 16 * 4 + i % 4;
    if (to_unpacked) {
      columns[static_cast<size_t>(i)] = column;
    } else {
      columns[static_cast<size_t>(column)] = i;
    }
  }
  return columns;
}
constexpr Columns kToUnpacked = MakeColumns(true), kFromUnpacked = MakeColumns(false);

inline void Permute(const Columns& columns, const __m512 from[2], __m512 to[2]) {
  for (int i = 0; i < 2; ++i) {
    to[i] = _mm512_permutex2var_ps(from[0], _mm512_load_si512(columns.data() + 16 * i), from[1]);
  }
}

// out[h][0, 32 * kChunks) += probabilities of kHeads heads times the same columns of V.
template <int kHeads, int kChunks>
void AccumulateColumns(const std::byte* const* rows, int64_t offset, int64_t count, Ahead& ahead,
                       const uint16_t* probabilities, int64_t head_dim, float* out) {
  __m512 sum[kHeads][2 * kChunks];
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kChunks; ++c) {
      const float* columns = out + h * head_dim + 32 * c;
      const __m512 halves[2] = {_mm512_load_ps(columns), _mm512_load_ps(columns + 16)};
      Permute(kToUnpacked, halves, sum[h] + 2 * c);
    }
  }
  for (int64_t r = 0; r < count; r += 2) {
    ahead.Ask(1);
    // An odd last row is followed by another row with probability 0.
    const std::byte* first = rows[r] + offset;
    const std::byte* second = rows[r + 1] + offset;
    __m512bh pairs[2 * kChunks];
    for (int c = 0; c < kChunks; ++c) {
      const __m512i a = _mm512_loadu_si512(first + 64 * c), b = _mm512_loadu_si512(second + 64 * c);
      pairs[2 * c] = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(a, b));
      pairs[2 * c + 1] = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(a, b));
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
    for (int c = 0; c < kChunks; ++c) {
      __m512 halves[2];
      Permute(kFromUnpacked, sum[h] + 2 * c, halves);
      _mm512_store_ps(out + h * head_dim + 32 * c, halves[0]);
      _mm512_store_ps(out + h * head_dim + 32 * c + 16, halves[1]);
    }
  }
}

// Attends a tile with kHeads heads.
template <int kHeads>
void Heads(const std::byte* const* rows, int64_t count, Ahead& ahead, int64_t head_dim,
           const std::byte* q, float cap, float* maximum, float* sum, float* out) {
  alignas(64) float scores[kHeads][kDecodeTileRows];
  alignas(64) uint16_t probabilities[kHeads][kDecodeTileRows];
  const auto score = head_dim == 64    ? ScoreHeads<kHeads, 2>
                     : head_dim == 128 ? ScoreHeads<kHeads, 4>
                                       : ScoreHeads<kHeads, 0>;
  score(rows, count, ahead, q, head_dim, scores[0]);
  // Up to the last row that has a score.
  for (int h = 0; cap != 0 && h < kHeads; ++h) SoftCap(scores[h], count, cap);
  for (int h = 0; h < kHeads; ++h) {
    TileSoftmax(scores[h], count, head_dim, maximum + h, sum + h, out + h * head_dim,
                probabilities[h]);
  }
  // V follows K in a row.
  const int64_t v = head_dim * 2;
  int64_t c = 0;
  for (; c + 64 <= head_dim; c += 64) {
    AccumulateColumns<kHeads, 2>(rows, v + c * 2, count, ahead, probabilities[0], head_dim,
                                 out + c);
  }
  if (c < head_dim) {
    AccumulateColumns<kHeads, 1>(rows, v + c * 2, count, ahead, probabilities[0], head_dim,
                                 out + c);
  }
  ahead.Ask(kDecodeTileRows);  // the rest, if the next tile is longer than this one
}

}  // namespace

void Avx512DecodeTile(const std::byte* const* rows, int64_t count, const std::byte* const* next,
                      int64_t next_count, int64_t head_dim, const void* queries, int64_t heads,
                      float cap, float* maximum, float* sum, float* out) {
  // Padded to whole vectors of rows by repeating the last one.
  const std::byte* padded[kDecodeTileRows];
  if (count < kDecodeTileRows) {
    std::copy(rows, rows + count, padded);
    std::fill(padded + count, padded + kDecodeTileRows, rows[count - 1]);
    rows = padded;
  }
  const auto* q = static_cast<const std::byte*>(queries);
  Ahead ahead(next, next_count, 4 * head_dim);
  for (int64_t h = 0; h < heads;) {
    const int64_t left = heads - h;
    const auto run = left >= 4 ? Heads<4> : left >= 2 ? Heads<2> : Heads<1>;
    run(rows, count, ahead, head_dim, q + h * head_dim * 2, cap, maximum + h, sum + h,
        out + h * head_dim);
    h += left >= 4 ? 4 : left >= 2 ? 2 : 1;
  }
}

}  // namespace litecache::ops::cpu
LC_END_AVX512

#else  // not x86-64

namespace litecache::ops::cpu {
void Avx512DecodeTile(const std::byte* const*, int64_t, const std::byte* const*, int64_t, int64_t,
                      const void*, int64_t, float, float*, float*, float*) {
  LC_CHECK(false, "no AVX-512 on this architecture");
}
}  // namespace litecache::ops::cpu

#endif
