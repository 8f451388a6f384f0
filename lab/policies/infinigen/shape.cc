#include "lab/policies/infinigen/shape.h"

#include <algorithm>

#include "kv/retrieve/retrievers.h"
#include "lab/policies/infinigen/options.h"

namespace litecache::lab::infinigen {
namespace {

// 0.2 * 35 is slightly less than 7: the rounding keeps such products whole.
constexpr double kShareRounding = 1e-9;

// A table without lists has no pages; any page size serves.
constexpr int64_t kNoPages = int64_t{1} << 30;

int64_t ShareOf(double share, int64_t count) {
  const auto part = static_cast<int64_t>(share * static_cast<double>(count) + kShareRounding);
  return std::clamp<int64_t>(part, 1, count);
}

}  // namespace

Shape::Shape(const Layout& model, const InfiniGenOptions& options, DeviceType device)
    : layout(model),
      group(model.q_heads / model.kv_heads),
      pages(model),
      format(ops::FormatOf(model.dtype, model.head_dim)),
      partial{.rank = ShareOf(options.partial, model.head_dim)},
      partial_tokens(MetadataTokens("infinigen", pages.page_bytes, partial.block_bytes(),
                                    ops::ProjectionFormat::kBlockTokens)),
      dense_layers(std::min(options.dense_layers, model.layers)),
      cap(options.cap),
      on_gpu(device == DeviceType::kCuda) {}

TableShape Shape::PartialTable() const {
  const int64_t lists = sparse_layers() * layout.kv_heads;
  return {lists, lists > 0 ? partial_tokens : kNoPages, 0};
}

int64_t Shape::CapRows(int64_t past) const { return past == 0 ? 0 : ShareOf(cap, past); }

int64_t Shape::BufferPages(int64_t buffer, int64_t n) const {
  if (buffer >= layout.layers) return 0;
  return pages.BlocksFor(on_gpu || buffer < dense_layers ? n : CapRows(n - 1) + 1);
}

TierBytes Shape::ForkBytesFor(int64_t shared, int64_t tokens) const {
  const TableShape partial_table = PartialTable();
  // A fork made between the prompt and its first token chooses and encodes separately.
  const int64_t device = partial_table.lists * partial_table.BlocksFor(tokens) +
                         (tokens > 0 ? StagingPages(tokens) : 0);
  return {.device = static_cast<uint64_t>(device) * pages.page_bytes,
          .host = pages.ForkBytesFor(shared, tokens)};
}

}  // namespace litecache::lab::infinigen
