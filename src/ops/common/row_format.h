// Storage formats of KV rows, and conversions between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "device/device.h"

namespace litecache::ops {

// bf16, f32: [K (head_dim) | V (head_dim)]. fp8 (E4M3), int8: [K codes | V codes | f32 scale of K |
// f32 scale of V | 8 bytes of padding], value = code * scale; a scale is the part's largest
// magnitude over the format's largest number (448, 127), 0 for a part of zeros. int4:
// each part in groups of 64 along head_dim (the last may be shorter), [K codes | V codes | K's
// groups: f16 minimum, f16 step | V's groups], two codes a byte, the lower one first,
// value = minimum + code * step; a step is a fifteenth of the group's range. Minimum and step
// saturate at f16's largest number, 65504: values beyond it do, too.
enum class RowEncoding : uint8_t { kBF16, kF32, kFp8, kInt8, kInt4 };

inline constexpr int64_t kInt4Group = 64;
// The largest head_dim that a GPU's kernels take.
inline constexpr int64_t kMostHeadDimOnGpu = 512;

std::string_view Name(RowEncoding encoding);  // "bf16", "f32", "fp8", "int8", "int4"

struct RowFormat {
  RowEncoding encoding = RowEncoding::kBF16;
  int64_t head_dim = 0;
  // fp8 and int8 only: a row consists of its codes, and its scales are stored elsewhere as
  // RowScales. Used by stores that a GPU pulls from: a head of 128 is then two lines of the link
  // instead of three (lab/notes/gpu/litecache.md, "A million tokens"). GPU operations in ops/
  // support it, those in this folder do not.
  bool scales_apart = false;

  bool quantized() const { return encoding >= RowEncoding::kFp8; }
  // True for fp8 and int8.
  bool has_scales() const { return quantized() && encoding != RowEncoding::kInt4; }
  size_t row_bytes() const {
    const auto d = static_cast<size_t>(head_dim);
    if (encoding == RowEncoding::kInt4) return 2 * (int4_codes() + 4 * int4_groups());
    if (quantized()) return 2 * d + (scales_apart ? 0 : 16);
    return 2 * d * (encoding == RowEncoding::kBF16 ? 2 : 4);
  }
  // For one part (K or V): bytes of codes, and number of groups.
  size_t int4_codes() const { return static_cast<size_t>((head_dim + 1) / 2); }
  size_t int4_groups() const {
    return static_cast<size_t>((head_dim + kInt4Group - 1) / kInt4Group);
  }
};

// The scales of one row of fp8 or int8.
struct RowScales {
  float k = 0, v = 0;
};

// Builds a row with its scales from codes and scales, and splits one; format.has_scales().
void JoinScales(const RowFormat& format, const std::byte* codes, const RowScales& scales,
                std::byte* row);
RowScales SplitScales(const RowFormat& format, const std::byte* row, std::byte* codes);

inline RowFormat FormatOf(DType dtype, int64_t head_dim) {
  return {dtype == DType::kBF16 ? RowEncoding::kBF16 : RowEncoding::kF32, head_dim};
}

// Rows of one (sequence, layer, KV head): token t is in page t / page_tokens.
struct PagedRows {
  std::byte* const* pages = nullptr;
  int64_t page_tokens = 0;
  RowFormat format;

  std::byte* Row(int64_t token) const {
    return pages[token / page_tokens] +
           static_cast<size_t>(token % page_tokens) * format.row_bytes();
  }
};

// Slots of one (sequence, layer, KV head): slot s is in page s / page_slots; rows come first in a
// page.
using SlotRows = PagedRows;

// Copies rows [begin, begin + count) of `source` to the same tokens of `target`, converting between
// any two formats of the same head_dim.
struct ConvertWork {
  PagedRows source, target;
  int64_t begin = 0, count = 0;
};
void ConvertRows(Stream& stream, std::span<const ConvertWork> work);

// ConvertRows of one item on the calling thread alone, for transfer threads.
void CopyRows(const ConvertWork& work);

// Converts one row between any two formats of the same head_dim.
void ConvertRow(const RowFormat& from, const std::byte* source, const RowFormat& to,
                std::byte* target);

}  // namespace litecache::ops
