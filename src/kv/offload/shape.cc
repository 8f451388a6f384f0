#include "kv/offload/shape.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace litecache::kv::offload {
namespace {

constexpr uint64_t kPageBytes = 64 * 1024;
// The copy engine reaches the link's rate from 256 KiB on. Longer pages mean fewer copies, but rows
// in partly filled pages are transferred by a kernel, which waits for concurrent products, and
// small pages have fewer such rows (lab/notes/kvpr.md).
constexpr uint64_t kGpuPageBytes = 256 * 1024;
constexpr uint64_t kLeastTokens = 16, kMostTokens = 256;
constexpr uint64_t kAlignment = 256;  // alignment of pages: kernels move 16 bytes at a time
// A table without lists has no pages, so any page size works; a large one keeps the block count
// low.
constexpr int64_t kNoPages = int64_t{1} << 30;

}  // namespace

ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options) {
  ops::RowFormat format = ops::FormatOf(layout.dtype, layout.head_dim);
  if (options.host_rows == "fp8") format.encoding = ops::RowEncoding::kFp8;
  if (options.host_rows == "int8") format.encoding = ops::RowEncoding::kInt8;
  if (options.host_rows == "int4") format.encoding = ops::RowEncoding::kInt4;
  return format;
}

Shape::Shape(const Layout& model, const KvOptions& options, double device_share, bool inputs,
             DeviceType device)
    : layout(model),
      device_heads(std::lround(device_share * static_cast<double>(model.kv_heads))),
      on_gpu(device == DeviceType::kCuda),
      format(ops::FormatOf(model.dtype, model.head_dim)),
      store_format(StoreFormat(model, options)),
      keeps_inputs(inputs),
      batch_groups(options.batch_groups) {
  CheckLayout(layout);
  if (on_gpu && store_format.encoding == ops::RowEncoding::kInt4 && layout.head_dim % 4 != 0) {
    throw Unsupported(
        "KV options: host_rows = int4 on a GPU needs a head_dim that is a multiple of 4, not {}; "
        "use fp8, int8 or auto",
        layout.head_dim);
  }
  if (keeps_inputs) {
    if (layout.hidden < 2 || layout.hidden % 2 != 0) {
      throw InvalidArgument(
          "KV policy {}: layer inputs of {} values cannot be stored; the number must be even",
          options.policy, layout.hidden);
    }
    input_format = ops::FormatOf(layout.dtype, layout.hidden / 2);
  }
  on_gpu ? PlaceOnGpu() : PlaceOnCpu();
  if (!keeps_inputs) return;
  input_page_tokens = static_cast<int64_t>(store_page_bytes / input_format.row_bytes());
  if (input_page_tokens < 1 || input_staging_tokens() < 1) {
    throw InvalidArgument("KV policy {}: a layer's input of {} values does not fit a page of {}",
                          options.policy, layout.hidden, std::min(store_page_bytes, page_bytes));
  }
}

void Shape::PlaceOnCpu() {
  const PageLayout pages(layout);
  page_bytes = pages.page_bytes;
  resident_page_tokens = staging_page_tokens = pages.page_tokens;
  store_page_tokens = static_cast<int64_t>(
      std::bit_floor(std::max<uint64_t>(kPageBytes / store_format.row_bytes(), kLeastTokens)));
  store_page_bytes = store_format.row_bytes() * static_cast<uint64_t>(store_page_tokens);
}

void Shape::PlaceOnGpu() {
  const auto rows = [](int64_t heads, const ops::RowFormat& f) {
    return static_cast<uint64_t>(heads) * f.row_bytes();
  };
  // Bytes of a token in each table.
  const uint64_t store = rows(host_heads(), store_format), resident = rows(device_heads, format);
  const uint64_t staging = rows(host_heads(), format);
  const uint64_t input = keeps_inputs ? input_format.row_bytes() : 0;
  const uint64_t largest = std::max({store, resident, staging, input});
  const uint64_t tokens = std::clamp(std::bit_floor(kGpuPageBytes / std::max(store, resident)),
                                     kLeastTokens, kMostTokens);
  page_bytes = std::max(tokens * std::max(store, resident), kLeastTokens * largest);
  page_bytes = (page_bytes + kAlignment - 1) / kAlignment * kAlignment;
  store_page_bytes = page_bytes;
  const auto in_page = [&](uint64_t token) {
    return token > 0 ? static_cast<int64_t>(page_bytes / token) : kNoPages;
  };
  store_page_tokens = in_page(store);
  resident_page_tokens = in_page(resident);
  staging_page_tokens = in_page(staging);
}

TableShape Shape::StoreTable() const {
  return {Lists(host_heads()), store_page_tokens, on_gpu ? 0 : store_format.row_bytes()};
}

TableShape Shape::ResidentTable() const {
  return {Lists(device_heads), resident_page_tokens, on_gpu ? 0 : format.row_bytes()};
}

TableShape Shape::InputTable() const {
  if (!keeps_inputs) return {0, kNoPages, 0};
  return {InputList(layout.layers), input_page_tokens, input_format.row_bytes()};
}

TableShape Shape::FirstInputTable() const {
  if (!keeps_inputs || !on_gpu) return {0, kNoPages, 0};
  return {1, input_page_tokens, input_format.row_bytes()};
}

int64_t Shape::StagingPages(int64_t n, int64_t inputs) const {
  int64_t staging = Lists(host_heads()) / layout.layers * Blocks(n, staging_page_tokens);
  if (expands() && host_heads() > 0) staging += Blocks(n, store_page_tokens);
  if (inputs > 0) staging += Blocks(inputs, input_staging_tokens());
  return staging;
}

TierBytes Shape::ForkBytesFor(int64_t shared, int64_t tokens, int64_t inputs) const {
  const auto own = [&](const TableShape& table) {
    return table.lists * (table.BlocksFor(tokens) - shared / table.page_tokens);
  };
  const int64_t device =
      own(ResidentTable()) + own(FirstInputTable()) + buffers() * StagingPages(tokens, inputs);
  const int64_t host = own(StoreTable()) + own(InputTable());
  return {.device = static_cast<uint64_t>(device) * page_bytes,
          .host = static_cast<uint64_t>(host) * store_page_bytes};
}

}  // namespace litecache::kv::offload
