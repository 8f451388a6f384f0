#include "lab/policies/pqcache/shape.h"

#include "kv/retrieve/retrievers.h"
#include "lab/policies/pqcache/options.h"

namespace litecache::lab::pqcache {
namespace {

ops::PqFormat FormatOf(const Layout& layout, const PqCacheOptions& options) {
  if (layout.head_dim % options.subspaces != 0) {
    throw InvalidArgument("KV options: pqcache.subspaces = {} does not divide the heads' {} values",
                          options.subspaces, layout.head_dim);
  }
  return {.subspaces = options.subspaces, .bits = options.bits};
}

}  // namespace

Shape::Shape(const Layout& model, const PqCacheOptions& options, DeviceType device)
    : layout(model),
      group(model.q_heads / model.kv_heads),
      pages(model),
      format(ops::FormatOf(model.dtype, model.head_dim)),
      codes(FormatOf(model, options)),
      code_tokens(MetadataTokens("pqcache", pages.page_bytes, codes.block_bytes(),
                                 ops::PqFormat::kBlockTokens)),
      sink(options.sink_tokens),
      share(options.share),
      block_tokens(options.block_tokens),
      blocks(options.cache_tokens / options.block_tokens),
      on_gpu(device == DeviceType::kCuda) {
  if (codebooks_a_page() < 1) {
    throw InvalidArgument(
        "KV options: pqcache.bits = {}: the {} centroids of a head take more than a page of {} "
        "bytes; use fewer bits",
        codes.bits, codes.clusters(), pages.page_bytes);
  }
}

TierBytes Shape::ForkBytesFor(int64_t shared, int64_t tokens) const {
  // Memory without and with an index: the prompt may have been as long as the sequence. On a GPU
  // the buffers of a further prompt are added.
  const int64_t whole = layout.kv_heads * pages.BlocksFor(tokens);
  int64_t device = whole;
  if (Indexed(tokens)) {
    const int64_t rows = Rows(tokens);
    const int64_t indexed =
        lists() * (CodeTable().BlocksFor(tokens) + pages.BlocksFor(WindowSlots(rows)) +
                   pages.BlocksFor(CachedBlocks(tokens) * block_tokens)) +
        CodebookPages() + layout.kv_heads * pages.BlocksFor(rows);
    device = std::max(whole, indexed);
  }
  if (on_gpu) device += 2 * whole;
  return {.device = static_cast<uint64_t>(device) * pages.page_bytes,
          .host = pages.ForkBytesFor(shared, tokens)};
}

}  // namespace litecache::lab::pqcache
