#include "ops/common/row_format.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/common/convert_rows_cpu.h"

namespace litecache::ops {

std::string_view Name(RowEncoding encoding) {
  constexpr std::array<std::string_view, 5> kNames = {"bf16", "f32", "fp8", "int8", "int4"};
  return kNames.at(static_cast<size_t>(encoding));
}

namespace {

void Check(const ConvertWork& w) {
  LC_CHECK(w.source.format.head_dim == w.target.format.head_dim && w.source.format.head_dim >= 1,
           "head_dim {} and {}", w.source.format.head_dim, w.target.format.head_dim);
  LC_CHECK(!w.source.format.scales_apart && !w.target.format.scales_apart);
  LC_CHECK(w.source.page_tokens >= 1 && w.target.page_tokens >= 1);
  LC_CHECK(w.begin >= 0 && w.count >= 0, "{} rows from {}", w.count, w.begin);
}

}  // namespace

void JoinScales(const RowFormat& format, const std::byte* codes, const RowScales& scales,
                std::byte* row) {
  LC_CHECK(format.has_scales() && !format.scales_apart);
  const size_t bytes = 2 * static_cast<size_t>(format.head_dim);
  std::memcpy(row, codes, bytes);
  std::memcpy(row + bytes, &scales, sizeof(scales));
  std::memset(row + bytes + sizeof(scales), 0, format.row_bytes() - bytes - sizeof(scales));
}

RowScales SplitScales(const RowFormat& format, const std::byte* row, std::byte* codes) {
  LC_CHECK(format.has_scales() && !format.scales_apart);
  const size_t bytes = 2 * static_cast<size_t>(format.head_dim);
  RowScales scales;
  std::memcpy(codes, row, bytes);
  std::memcpy(&scales, row + bytes, sizeof(scales));
  return scales;
}

void ConvertRows(Stream& stream, std::span<const ConvertWork> work) {
  for (const ConvertWork& w : work) Check(w);
  cpu::ConvertRows(AsCpu(stream).pool(), work);
}

void CopyRows(const ConvertWork& work) {
  Check(work);
  cpu::CopyRows(work);
}

void ConvertRow(const RowFormat& from, const std::byte* source, const RowFormat& to,
                std::byte* target) {
  LC_CHECK(from.head_dim == to.head_dim, "head_dim {} and {}", from.head_dim, to.head_dim);
  LC_CHECK(!from.scales_apart && !to.scales_apart);
  cpu::RowConverter(from, to)(source, target);
}

}  // namespace litecache::ops
