// Products with many rows of x: weights are unpacked to 16 bits in memory once for all rows, and
// lanes are rows of x. Included once for each set of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Tiles as large as the registers hold sums of, beside what they multiply.
constexpr int kTileRows = kLanes / 2, kTilePanels = 2;

// How an unpacked format multiplies: integer sums of `pairs` pairs are scaled and added in f32.
struct SumShape {
  int64_t pairs;
  int64_t minima;  // of a slice: 0, 8 or 16
};

template <class Format>
constexpr SumShape SumShapeOf() {
  int64_t group = kUnitValues;  // of one scale
  if constexpr (Format::kMultiples > 0) {
    const auto fits = [](int64_t n) { return n * Format::kMost * kMostX <= INT32_MAX; };
    static_assert(kUnitValues * int64_t{Format::kMost} * kMostX <= INT32_MAX);
    while (2 * group <= kSliceValues && fits(2 * group)) group *= 2;
  }
  return {group / 2, Format::kMinima};
}

template <class Format>
LC_INLINE void StoreSlice(const std::byte* block, UnpackedSlice* out) {
  Slice s;
  Format::Unpack(block, s);
  alignas(32) int16_t multiples[16];
  if constexpr (Format::kMultiples > 0) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(multiples), s.multiples);
  }
#pragma GCC unroll 8
  for (int u = 0; u < kSliceUnits; ++u) {
    const auto level = [&](__m256i words) __attribute__((always_inline)) {
      if constexpr (Format::kOffset > 0) {
        words = _mm256_sub_epi16(words, _mm256_set1_epi16(Format::kOffset));
      }
      if constexpr (Format::kMultiples == 8) {
        words = _mm256_mullo_epi16(words, _mm256_set1_epi16(multiples[u]));
      } else if constexpr (Format::kMultiples == 16) {
        words = _mm256_mullo_epi16(words, _mm256_set_m128i(_mm_set1_epi16(multiples[2 * u + 1]),
                                                           _mm_set1_epi16(multiples[2 * u])));
      }
      return words;
    };
    const Words words = Widen<Format>(s.levels[u]);
    auto* levels = reinterpret_cast<__m256i*>(out->levels + u * kUnitValues);
    _mm256_store_si256(levels, level(words.even));
    _mm256_store_si256(levels + 1, level(words.odd));
  }
  _mm256_store_ps(out->scales, Format::kMultiples > 0 ? _mm256_set1_ps(s.unit) : s.scale);
  for (int i = 0; i < Format::kMinima / 8; ++i) _mm256_store_ps(out->minima + 8 * i, s.minima[i]);
}

// A panel's slice.
struct PanelSlice {
  const std::byte* data;
  LC_INLINE Ints Levels(int64_t pair) const {
    return Read<Ints>(data + pair * int64_t{sizeof(Ints)});
  }
  LC_INLINE Floats Factor(size_t offset) const {
    const auto row = kSlicePairs + static_cast<int64_t>(offset / sizeof(float));
    return Read<Floats>(data + row * int64_t{sizeof(Floats)});
  }
  LC_INLINE Floats Scale() const { return Factor(offsetof(SliceFactors, scale)); }
  // What minima are multiplied with, if a slice has `minima`.
  LC_INLINE Floats Sum(int64_t minima, int64_t i) const {
    const size_t first =
        minima == kSliceUnits ? offsetof(SliceFactors, sums) : offsetof(SliceFactors, halves);
    return Factor(first + static_cast<size_t>(i) * sizeof(float));
  }
};

// Adds all slices of kRows rows of weights, from row `row` on, and of kPanels panels to their sums:
// one chain for every sum, over the slices in order.
template <int kRows, int kPanels>
__attribute__((noinline)) void MultiplyTile(const QuantizedGemmArguments& a, const SumShape& of,
                                            int64_t slices, int64_t row, int64_t panel) {
  float* sums = a.sums + (panel * a.count + row) * kLanes;
  const auto sum = [&](int r, int p) __attribute__((always_inline)) {
    return sums + (p * a.count + r) * kLanes;
  };
  for (int64_t s = 0; s < slices; ++s) {
    const UnpackedSlice* w = a.unpacked + s * a.count + row;
    PanelSlice x[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      x[p] = {a.panels + s * a.slice_stride + (panel + p) * PanelBytes(kLanes)};
    }
    Floats parts[kRows][kPanels];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) parts[r][p] = Fill(0);
    }
    for (int64_t begin = 0; begin < kSlicePairs; begin += of.pairs) {
      Ints dots[kRows][kPanels];
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) dots[r][p] = NoInts();
      }
#pragma GCC unroll 1
      for (int64_t i = begin; i < begin + of.pairs; ++i) {
        Ints levels[kPanels];
        for (int p = 0; p < kPanels; ++p) levels[p] = x[p].Levels(i);
        for (int r = 0; r < kRows; ++r) {
          const Ints pair = Pair(w[r].levels + 2 * i);
          for (int p = 0; p < kPanels; ++p) AddProducts(pair, levels[p], dots[r][p]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const Floats scale = Fill(w[r].scales[begin / of.pairs]);
        for (int p = 0; p < kPanels; ++p) {
          parts[r][p] = Add(ToFloats(dots[r][p]), scale, parts[r][p]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        const Floats total = Read<Floats>(sum(r, p));
        parts[r][p] = Add(parts[r][p], x[p].Scale(), total);
      }
    }
    for (int64_t i = 0; i < of.minima; ++i) {
      Floats x_sums[kPanels];
      for (int p = 0; p < kPanels; ++p) x_sums[p] = x[p].Sum(of.minima, i);
      for (int r = 0; r < kRows; ++r) {
        const Floats minimum = Fill(w[r].minima[i]);
        for (int p = 0; p < kPanels; ++p) {
          parts[r][p] = Subtract(minimum, x_sums[p], parts[r][p]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        __builtin_memcpy(sum(r, p), &parts[r][p], sizeof(Floats));
      }
    }
  }
}

template <int kPanels>
inline void MultiplyRows(const QuantizedGemmArguments& a, const SumShape& of, int64_t slices,
                         int64_t panel) {
  int64_t row = 0;
  for (; row + kTileRows <= a.count; row += kTileRows) {
    MultiplyTile<kTileRows, kPanels>(a, of, slices, row, panel);
  }
  for (; row < a.count; ++row) MultiplyTile<1, kPanels>(a, of, slices, row, panel);
}

template <class Format>
void UnpackRows(const QuantizedGemmArguments& a) {
  const int64_t whole = a.depth / kSliceValues;
  const int64_t rest = a.depth % kSliceValues / Format::kValues * Format::kBytes;
  for (int64_t r = 0; r < a.count; ++r) {
    const std::byte* row = a.weight + r * a.row_bytes;
    for (int64_t s = 0; s < whole; ++s, row += Format::kSliceBytes) {
      Prefetch<Format>(row);
      StoreSlice<Format>(row, a.unpacked + s * a.count + r);
    }
    if (rest > 0) {  // blocks of 32: the others of the slice are zero
      std::byte padded[Format::kSliceBytes] = {};
      __builtin_memcpy(padded, row, static_cast<size_t>(rest));
      StoreSlice<Format>(padded, a.unpacked + whole * a.count + r);
    }
  }
}

template <class Format>
void GemmPanels(const QuantizedGemmArguments& a) {
  constexpr SumShape kShape = SumShapeOf<Format>();
  const int64_t slices = (a.depth + kSliceValues - 1) / kSliceValues;
  UnpackRows<Format>(a);
  if (!a.accumulate) {
    __builtin_memset(a.sums, 0, static_cast<size_t>(a.panel_count * a.count) * sizeof(Floats));
  }
  int64_t panel = 0;
  for (; panel + kTilePanels <= a.panel_count; panel += kTilePanels) {
    MultiplyRows<kTilePanels>(a, kShape, slices, panel);
  }
  for (; panel < a.panel_count; ++panel) MultiplyRows<1>(a, kShape, slices, panel);
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
