// Blocks of quantized weights brought into one form, in AVX2 registers. Included once for each set
// of instructions, by kernels_cpu-inl.h.

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// 256 values as (unsigned or signed) bytes, in order, and what they are multiplied with.
struct Slice {
  __m256i levels[8];
  // Formats without multiples: value = scale * level - minimum, both of 32 values each.
  __m256 scale;
  // Formats with multiples: value = unit * multiple * level - minimum. 16 multiples and minima of
  // 16 values each, or 8 of 32 values each in the lower lanes, in 16 bits.
  float unit;
  __m256i multiples;
  __m256 minima[2];
};

template <typename T>
LC_INLINE T Read(const void* data) {
  T value;
  __builtin_memcpy(&value, data, sizeof(value));
  return value;
}

LC_INLINE __m256i Load32(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}
LC_INLINE __m256i Load16Twice(const std::byte* data) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
}
LC_INLINE float Half(const std::byte* data) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(Read<uint16_t>(data))));
}

// The f16 at the same place of 8 blocks.
LC_INLINE __m256 Halves(const std::byte* data, int64_t bytes) {
  const auto at = [&](int i) __attribute__((always_inline)) {
    return Read<int16_t>(data + i * bytes);
  };
  return _mm256_cvtph_ps(_mm_set_epi16(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0)));
}

LC_INLINE __m256i And(__m256i a, int byte) {
  return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(byte)));
}

// 16 bytes: their low halves, then their high ones.
LC_INLINE __m256i Nibbles(const std::byte* data) {
  const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
  return And(_mm256_srlv_epi32(Load16Twice(data), shifts), 15);
}

// 32 bits: bit i as bit 4 of byte i.
LC_INLINE __m256i FifthBits(const std::byte* data) {
  const __m256i bits = _mm256_set1_epi32(Read<int32_t>(data));
  const __m256i spread = _mm256_shuffle_epi8(
      bits, _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  return And(_mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask), 16);
}

// A format's layout, and how its kernels multiply. kSigned: levels are signed bytes. kOffset: all
// minima are kOffset scales, which products with many rows subtract from the levels. kMinima,
// kMultiples: how many of a slice the blocks store. kMost: the largest magnitude of a level less
// the offset, times its multiple.
template <int kValuesOf, int kBytesOf, int kMostOf>
struct Layout {
  static constexpr int64_t kValues = kValuesOf, kBytes = kBytesOf;
  static constexpr int64_t kSliceBytes = kSliceValues / kValues * kBytes;
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0, kMinima = 0, kMultiples = 0, kMost = kMostOf;
};

// Asks for what is read some slices later: the hardware's prefetchers stop at the end of a page.
template <class Format>
LC_INLINE void Prefetch(const std::byte* slice) {
  constexpr int64_t kAhead = 4096, kLine = 64;
  for (int64_t i = 0; i < Format::kSliceBytes; i += kLine) {
    __builtin_prefetch(slice + i + kAhead);
  }
}

struct Q8_0 : Layout<32, 34, 128> {
  static constexpr bool kSigned = true;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) s.levels[u] = Load32(b + u * kBytes + 2);
    s.scale = Halves(b, kBytes);
  }
};

struct Q4_0 : Layout<32, 18, 8> {
  static constexpr int kOffset = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) s.levels[u] = Nibbles(b + u * kBytes + 2);
    s.scale = Halves(b, kBytes);
  }
};

// Stored minima are added.
LC_INLINE __m256 Negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

struct Q4_1 : Layout<32, 20, 15> {
  static constexpr int kMinima = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) s.levels[u] = Nibbles(b + u * kBytes + 4);
    s.scale = Halves(b, kBytes);
    s.minima[0] = Negate(Halves(b + 2, kBytes));
  }
};

struct Q5_0 : Layout<32, 22, 16> {
  static constexpr int kOffset = 16;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) {
      const std::byte* block = b + u * kBytes;
      s.levels[u] = _mm256_or_si256(Nibbles(block + 6), FifthBits(block + 2));
    }
    s.scale = Halves(b, kBytes);
  }
};

struct Q5_1 : Layout<32, 24, 31> {
  static constexpr int kMinima = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) {
      const std::byte* block = b + u * kBytes;
      s.levels[u] = _mm256_or_si256(Nibbles(block + 8), FifthBits(block + 4));
    }
    s.scale = Halves(b, kBytes);
    s.minima[0] = Negate(Halves(b + 2, kBytes));
  }
};

LC_INLINE __m128i Bytes(uint64_t bytes) { return _mm_cvtsi64_si128(static_cast<int64_t>(bytes)); }
// The lower 8 of them.
LC_INLINE __m256 BytesAsFloats(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

// The six bits each of 8 scales and minima of Q4_K and Q5_K (blocks::GroupScales), and the
// block's f16 pair.
LC_INLINE void GroupScales(const std::byte* b, Slice& s) {
  const auto first = Read<uint32_t>(b + 4), second = Read<uint32_t>(b + 8);
  const auto third = Read<uint32_t>(b + 12);
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x30303030;
  const uint64_t scales = (first & kSix) | uint64_t{(third & kFour) | (first >> 2 & kTwo)} << 32;
  const uint64_t minima = (second & kSix) | uint64_t{(third >> 4 & kFour) | (second >> 2 & kTwo)}
                                                << 32;
  s.unit = Half(b);
  s.multiples = _mm256_cvtepu8_epi16(Bytes(scales));
  s.minima[0] = _mm256_mul_ps(_mm256_set1_ps(Half(b + 2)), BytesAsFloats(Bytes(minima)));
}

struct Q4_K : Layout<256, 144, 15 * 63> {
  static constexpr int kMinima = 8, kMultiples = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int i = 0; i < 4; ++i) {
      const __m256i pair = Load32(b + 16 + i * 32);
      s.levels[2 * i] = And(pair, 15);
      s.levels[2 * i + 1] = And(_mm256_srli_epi16(pair, 4), 15);
    }
    GroupScales(b, s);
  }
};

struct Q5_K : Layout<256, 176, 31 * 63> {
  static constexpr int kMinima = 8, kMultiples = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    const __m256i bits = Load32(b + 16);
    for (int i = 0; i < 4; ++i) {
      const __m256i pair = Load32(b + 48 + i * 32);
      // Bits 2 i and 2 i + 1 of every byte, shifted to bit 4.
      const __m256i low =
          i < 2 ? _mm256_slli_epi16(bits, 4 - 2 * i) : _mm256_srli_epi16(bits, 2 * i - 4);
      const __m256i high =
          i < 2 ? _mm256_slli_epi16(bits, 3 - 2 * i) : _mm256_srli_epi16(bits, 2 * i - 3);
      s.levels[2 * i] = _mm256_or_si256(And(pair, 15), And(low, 16));
      s.levels[2 * i + 1] = _mm256_or_si256(And(_mm256_srli_epi16(pair, 4), 15), And(high, 16));
    }
    GroupScales(b, s);
  }
};

// Two bits each of 256 values, in order: value i of 128 in bits 2 * (i / 32) of byte i % 32.
LC_INLINE void TwoBits(const std::byte* q, __m256i* levels) {
  for (int half = 0; half < 2; ++half) {
    const __m256i bytes = Load32(q + half * 32);
    for (int i = 0; i < 4; ++i) {
      levels[half * 4 + i] = And(_mm256_srli_epi16(bytes, 2 * i), 3);
    }
  }
}

struct Q2_K : Layout<256, 84, 3 * 15> {
  static constexpr int kMinima = 16, kMultiples = 16;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    TwoBits(b + 16, s.levels);
    const auto pairs = Read<__m128i>(b);
    const __m128i low = _mm_set1_epi8(15);
    s.unit = Half(b + 80);
    s.multiples = _mm256_cvtepu8_epi16(_mm_and_si128(pairs, low));
    const __m128i minima = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
    const __m256 minimum_unit = _mm256_set1_ps(Half(b + 82));
    s.minima[0] = _mm256_mul_ps(minimum_unit, BytesAsFloats(minima));
    s.minima[1] = _mm256_mul_ps(minimum_unit, BytesAsFloats(_mm_unpackhi_epi64(minima, minima)));
  }
};

struct Q3_K : Layout<256, 110, 4 * 32> {
  static constexpr int kOffset = 4, kMultiples = 16;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    TwoBits(b + 32, s.levels);
    const __m256i bits = Load32(b);
    for (int i = 0; i < 8; ++i) {
      // Bit i of every byte, shifted to bit 2.
      const __m256i bit = i < 2 ? _mm256_slli_epi16(bits, 2 - i) : _mm256_srli_epi16(bits, i - 2);
      s.levels[i] = _mm256_or_si256(s.levels[i], And(bit, 4));
    }
    // 16 scales of 6 bits: four bits each in 8 bytes, two bits each in 4.
    const auto low = Read<uint64_t>(b + 96);
    const uint64_t high = Read<uint32_t>(b + 104);
    constexpr uint64_t kFour = 0x0f0f0f0f0f0f0f0f, kTwo = 0x30303030;
    const uint64_t first = (low & kFour) | (high << 4 & kTwo) | (high << 2 & kTwo) << 32;
    const uint64_t second = (low >> 4 & kFour) | (high & kTwo) | (high >> 2 & kTwo) << 32;
    const __m128i multiples =
        _mm_sub_epi8(_mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first)),
                     _mm_set1_epi8(32));
    s.unit = Half(b + 108);
    s.multiples = _mm256_cvtepi8_epi16(multiples);
  }
};

struct Q6_K : Layout<256, 210, 32 * 128> {
  static constexpr int kOffset = 32, kMultiples = 16;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int half = 0; half < 2; ++half) {
      const __m256i high = Load32(b + 128 + half * 32);
      for (int i = 0; i < 2; ++i) {
        const __m256i low = Load32(b + half * 64 + i * 32);
        const __m256i third = _mm256_slli_epi16(high, 4 - 2 * i);
        const __m256i last = i == 0 ? high : _mm256_srli_epi16(high, 2);
        s.levels[half * 4 + i] = _mm256_or_si256(And(low, 15), And(third, 0x30));
        s.levels[half * 4 + i + 2] =
            _mm256_or_si256(And(_mm256_srli_epi16(low, 4), 15), And(last, 0x30));
      }
    }
    s.unit = Half(b + 208);
    s.multiples = _mm256_cvtepi8_epi16(Read<__m128i>(b + 192));
  }
};

// Four bits that number the values of a table.
LC_INLINE __m256i Lookup(__m256i nibbles, const int8_t (&table)[16]) {
  return _mm256_shuffle_epi8(Load16Twice(reinterpret_cast<const std::byte*>(table)), nibbles);
}

struct IQ4_NL : Layout<32, 18, 127> {
  static constexpr bool kSigned = true;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) {
      s.levels[u] = Lookup(Nibbles(b + u * kBytes + 2), blocks::kUneven);
    }
    s.scale = Halves(b, kBytes);
  }
};

struct IQ4_XS : Layout<256, 136, 127 * 32> {
  static constexpr bool kSigned = true;
  static constexpr int kMultiples = 8;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    for (int u = 0; u < 8; ++u) {
      s.levels[u] = Lookup(Nibbles(b + 8 + u * 16), blocks::kUneven);
    }
    // 8 scales of 6 bits: two bits each in 2 bytes, four bits each in 4.
    const __m256i lanes = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(Read<int32_t>(b + 4)), lanes);
    const __m256i high =
        _mm256_srlv_epi32(_mm256_set1_epi32(Read<uint16_t>(b + 2)), _mm256_srli_epi32(lanes, 1));
    const __m256i six =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                        _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    s.unit = Half(b);
    const __m256i scales = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
    s.multiples = _mm256_castsi128_si256(
        _mm_packs_epi32(_mm256_castsi256_si128(scales), _mm256_extracti128_si256(scales, 1)));
  }
};

struct MXFP4 : Layout<32, 17, 12> {
  static constexpr bool kSigned = true;
  static LC_INLINE void Unpack(const std::byte* b, Slice& s) {
    alignas(32) float scales[8];
    for (int u = 0; u < 8; ++u) {
      s.levels[u] = Lookup(Nibbles(b + u * kBytes + 1), blocks::kDoubledFp4);
      const auto exponent = Read<uint8_t>(b + u * kBytes);
      const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23;
      __builtin_memcpy(&scales[u], &bits, sizeof(bits));
    }
    s.scale = _mm256_load_ps(scales);
  }
};

// A unit's bytes in 16 bits: those of even columns, those of odd ones.
struct Words {
  __m256i even, odd;
};
template <class Format>
LC_INLINE Words Widen(__m256i levels) {
  if constexpr (Format::kSigned) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(levels, 8), 8), _mm256_srai_epi16(levels, 8)};
  } else {
    return {_mm256_and_si256(levels, _mm256_set1_epi16(255)), _mm256_srli_epi16(levels, 8)};
  }
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu
