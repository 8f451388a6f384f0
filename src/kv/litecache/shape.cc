#include "kv/litecache/shape.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kv/cache.h"
#include "kv/litecache/head_slots_cpu.h"

namespace litecache::kv {
namespace {

constexpr uint64_t kPageBytes = 64 * 1024;
// Page size of a store that a GPU pulls from: a head's rows are adjacent, so that one address
// translation of the link serves many of them (docs/internals/architecture.md).
constexpr uint64_t kLinkPageBytes = 512 * 1024;
// A table without lists has no pages, so any page size works; a large one keeps the block count
// low.
constexpr int64_t kNoPages = int64_t{1} << 30;

}  // namespace

bool Shape::AttendsWhole(const Step& step) const {
  int64_t tokens = 0;
  for (const StepSequence& part : step.sequences) tokens += part.decode ? part.past + part.rows : 0;
  return tokens <= resident_whole;
}

ops::Aggregation AggregationOf(const KvOptions& options) {
  if (options.aggregation == "harmonic") return ops::Aggregation::kHarmonic;
  if (options.aggregation == "mean") return ops::Aggregation::kMean;
  if (options.aggregation == "min") return ops::Aggregation::kMin;
  return ops::Aggregation::kImportance;
}

ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options, DeviceType device) {
  ops::RowFormat format = ops::FormatOf(layout.dtype, layout.head_dim);
  if (options.host_rows == "fp8") format.encoding = ops::RowEncoding::kFp8;
  if (options.host_rows == "int8") format.encoding = ops::RowEncoding::kInt8;
  if (options.host_rows == "int4") format.encoding = ops::RowEncoding::kInt4;
  format.scales_apart = device == DeviceType::kCuda && format.has_scales();
  return format;
}

bool KeepsCodes(const Layout& layout, const KvOptions& options) {
  const char* asked = std::getenv("LITECACHE_SLOT_CODES");
  if (asked != nullptr && std::string_view(asked) == "0") return false;
  return StoreFormat(layout, options, DeviceType::kCuda).scales_apart &&
         (options.transfer == "auto" || options.transfer == "gpu-pull") &&
         layout.dtype == DType::kBF16 && layout.head_dim % 16 == 0;
}

Shape::Shape(const Layout& layout_of_model, const KvOptions& options, const HeadPlan& plan,
             int64_t tokens_a_metadata_page, DeviceType device)
    : SlotWindows{.sink = options.sink_tokens,
                  .recent = options.recent_tokens,
                  .carry = options.carry_tokens,
                  .budget = {.share = options.budget.share,
                             .tokens = options.budget.tokens,
                             .share_context = options.budget.share_context},
                  .by_need = options.budget.by_need,
                  .slots_factor = options.slots},
      layout(layout_of_model),
      group(layout.q_heads / layout.kv_heads),
      pages(layout),
      format(ops::FormatOf(layout.dtype, layout.head_dim)),
      store_format(StoreFormat(layout, options, device)),
      staged(store_format.quantized() || device == DeviceType::kCuda),
      staging_sets(device == DeviceType::kCuda ? 2 : 1),
      store_page_tokens(pages.page_tokens),
      metadata_tokens(tokens_a_metadata_page),
      resident_whole(options.resident_whole) {
  if (store_format.quantized() || device == DeviceType::kCuda) {
    const uint64_t page_bytes = device == DeviceType::kCuda ? kLinkPageBytes : kPageBytes;
    store_page_tokens = static_cast<int64_t>(
        std::bit_floor(std::max<uint64_t>(page_bytes / store_format.row_bytes(), 16)));
  }
  store_page_bytes = store_format.row_bytes() * static_cast<uint64_t>(store_page_tokens);
  page_slots = SlotsIn(pages.page_bytes, format);
  if (page_slots < 1 || labels_a_page() < 1) {
    throw InvalidArgument(
        "KV policy litecache: heads of {} values and groups of {} query heads "
        "are too large for its pages of {} bytes",
        layout.head_dim, group, pages.page_bytes);
  }
  if (device == DeviceType::kCuda && KeepsCodes(layout, options)) {
    codes = {.encoding = store_format.encoding,
             .page_slots =
                 ops::cuda::CodeSlotsIn(static_cast<int64_t>(pages.page_bytes), layout.head_dim),
             .begin = static_cast<int32_t>(CacheBegin()),
             .first_page = static_cast<int32_t>((CacheBegin() + page_slots - 1) / page_slots)};
  }
  const auto heads = static_cast<size_t>(layout.layers * layout.kv_heads);
  offloaded_list.assign(heads, -1);
  resident_list.assign(heads, -1);
  metadata_list.assign(heads, -1);
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    const int64_t before = offloaded;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const HeadSettings& settings = plan.at(layer, head);
      const auto index = static_cast<size_t>(Index(layer, head));
      (settings.resident ? resident_list : offloaded_list)[index] =
          settings.resident ? resident++ : offloaded++;
      if (!settings.dense && metadata_tokens > 0) metadata_list[index] = metadata++;
    }
    max_offloaded_in_layer = std::max(max_offloaded_in_layer, offloaded - before);
  }
}

bool Shape::offloads(int64_t layer) const {
  for (int64_t head = 0; head < layout.kv_heads; ++head) {
    if (offloads(layer, head)) return true;
  }
  return false;
}

TableShape Shape::StoreTable() const {
  return {offloaded, store_page_tokens, store_format.row_bytes()};
}

TableShape Shape::ResidentTable() const { return pages.Table(resident); }

TableShape Shape::MetadataTable() const {
  return {metadata, metadata > 0 ? metadata_tokens : kNoPages, 0};
}

TableShape Shape::ScalesTable() const {
  constexpr uint64_t kTokenBytes = sizeof(ops::RowScales);
  if (!store_format.scales_apart) return {0, kNoPages, 0};
  return {offloaded, static_cast<int64_t>(pages.page_bytes / kTokenBytes), kTokenBytes};
}

int64_t Shape::SlotPages(int64_t n) const {
  const auto pages_of = [](int64_t slots, int64_t a_page) { return (slots + a_page - 1) / a_page; };
  if (codes.page_slots > 0) return codes.first_page + pages_of(CacheSlots(n), codes.page_slots);
  return pages_of(CacheBegin() + CacheSlots(n), page_slots);
}

std::vector<NamedBytes> Shape::DeviceParts(int64_t tokens) const {
  const auto bytes = [&](int64_t count) { return static_cast<uint64_t>(count) * pages.page_bytes; };
  std::vector<NamedBytes> parts;
  const auto add = [&](std::string_view name, int64_t count) {
    if (count > 0) parts.push_back({name, bytes(count)});
  };
  add(codes.page_slots > 0 ? "cached rows, in 8 bits" : "cached rows",
      offloaded * SlotPages(tokens));
  add("resident heads", resident * ResidentTable().BlocksFor(tokens));
  add("retriever metadata", metadata * MetadataTable().BlocksFor(tokens));
  add("scales of the host's rows", ScalesTable().lists * ScalesTable().BlocksFor(tokens));
  add("labels", LabelPages());
  add("staging of a prompt", StagingPages(tokens));
  return parts;
}

TierBytes Shape::BytesFor(int64_t tokens) const { return ForkBytesFor(0, tokens); }

TierBytes Shape::ForkBytesFor(int64_t shared, int64_t tokens) const {
  // Recent rows that the parent has not stored yet are stored by each fork.
  const int64_t stored = std::max<int64_t>(shared - recent, 0);
  const auto own = [](const TableShape& table, int64_t shared_tokens, int64_t all) {
    return table.lists * (table.BlocksFor(all) - shared_tokens / table.page_tokens);
  };
  const int64_t device = own(ResidentTable(), shared, tokens) +
                         own(MetadataTable(), stored, tokens) + own(ScalesTable(), stored, tokens) +
                         offloaded * SlotPages(tokens) + LabelPages() + StagingPages(tokens);
  return {.device = static_cast<uint64_t>(device) * pages.page_bytes,
          .host = static_cast<uint64_t>(own(StoreTable(), stored, tokens)) * store_page_bytes};
}

}  // namespace litecache::kv
