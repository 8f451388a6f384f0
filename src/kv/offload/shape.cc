#include "kv/offload/shape.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace litecache::kv::offload {
namespace {

constexpr uint64_t kPageBytes = 64 * 1024;
// A table without lists has no pages; any page size serves, and few blocks are counted.
constexpr int64_t kNoPages = int64_t{1} << 30;

}  // namespace

ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options) {
  ops::RowFormat format = ops::FormatOf(layout.dtype, layout.head_dim);
  if (options.host_rows == "fp8") format.encoding = ops::RowEncoding::kFp8;
  if (options.host_rows == "int8") format.encoding = ops::RowEncoding::kInt8;
  if (options.host_rows == "int4") format.encoding = ops::RowEncoding::kInt4;
  return format;
}

Shape::Shape(const Layout& model, const KvOptions& options, double device_share, bool inputs)
    : layout(model),
      device_heads(std::lround(device_share * static_cast<double>(model.kv_heads))),
      pages(model),
      format(ops::FormatOf(model.dtype, model.head_dim)),
      store_format(StoreFormat(model, options)),
      store_page_tokens(static_cast<int64_t>(
          std::bit_floor(std::max<uint64_t>(kPageBytes / store_format.row_bytes(), 16)))),
      store_page_bytes(store_format.row_bytes() * static_cast<uint64_t>(store_page_tokens)),
      keeps_inputs(inputs) {
  CheckLayout(layout);
  if (!keeps_inputs) return;
  if (layout.hidden < 2 || layout.hidden % 2 != 0) {
    throw InvalidArgument(
        "KV policy {}: it keeps the layers' inputs, and {} values each cannot be kept; an even "
        "number is needed",
        options.policy, layout.hidden);
  }
  input_format = ops::FormatOf(layout.dtype, layout.hidden / 2);
  input_page_tokens = static_cast<int64_t>(store_page_bytes / input_format.row_bytes());
  if (input_page_tokens < 1 || input_staging_tokens() < 1) {
    throw InvalidArgument("KV policy {}: a layer's input of {} values does not fit a page of {}",
                          options.policy, layout.hidden,
                          std::min(store_page_bytes, pages.page_bytes));
  }
}

TableShape Shape::StoreTable() const {
  return {layout.layers * host_heads(), store_page_tokens, store_format.row_bytes()};
}

TableShape Shape::ResidentTable() const { return pages.Table(layout.layers * device_heads); }

TableShape Shape::InputTable() const {
  if (!keeps_inputs) return {0, kNoPages, 0};
  return {layout.layers, input_page_tokens, input_format.row_bytes()};
}

int64_t Shape::StagingPages(int64_t n, int64_t inputs) const {
  int64_t staging = host_heads() * pages.BlocksFor(n);
  if (inputs > 0) staging += (inputs + input_staging_tokens() - 1) / input_staging_tokens();
  return staging;
}

TierBytes Shape::ForkBytesFor(int64_t shared, int64_t tokens, int64_t inputs) const {
  const auto own = [&](const TableShape& table) {
    return table.lists * (table.BlocksFor(tokens) - shared / table.page_tokens);
  };
  const int64_t device = own(ResidentTable()) + 2 * StagingPages(tokens, inputs);
  const int64_t host = own(StoreTable()) + own(InputTable());
  return {.device = static_cast<uint64_t>(device) * pages.page_bytes,
          .host = static_cast<uint64_t>(host) * store_page_bytes};
}

}  // namespace litecache::kv::offload
