// All sizes of policy infinigen, from the layout and the options.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "lab/namespaces.h"
#include "lab/policies/infinigen/options.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"
#include "ops/select/projection_select.h"

namespace litecache::lab::infinigen {

// All rows are in the host store. The device keeps partial keys of the speculated layers, and
// during decode steps two staging buffers per sequence, used by alternate layers: one is filled
// while the other is attended. On a GPU prompts are attended in these buffers as well, so each has
// room for a layer's rows, and they are kept between steps.
struct Shape {
  // Throws InvalidArgument for heads too large for a page of partial keys.
  Shape(const Layout& layout, const InfiniGenOptions& options,
        DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t group = 0;  // query heads per KV head
  PageLayout pages;   // in both pools
  ops::RowFormat format;
  ops::ProjectionFormat partial;  // partial.rank channels of a key
  int64_t partial_tokens = 0;     // tokens per page of partial keys
  int64_t dense_layers = 0;       // at least the first: nothing is computed before it
  double cap = 0;
  bool on_gpu = false;

  static constexpr int64_t kBuffers = 2;

  int64_t sparse_layers() const { return layout.layers - dense_layers; }
  // Index of a (layer, KV head)'s list in the table of partial keys.
  int64_t PartialList(int64_t layer, int64_t head) const {
    return (layer - dense_layers) * layout.kv_heads + head;
  }
  TableShape StoreTable() const { return pages.Table(); }
  TableShape PartialTable() const;

  // The maximum number of rows that a head fetches from `past` earlier tokens.
  int64_t CapRows(int64_t past) const;
  // Pages of a head in a buffer when its sequence decodes its n-th token: the layer's fetched rows
  // and the new one.
  int64_t BufferPages(int64_t buffer, int64_t n) const;
  int64_t StagingPages(int64_t n) const {
    return layout.kv_heads * (BufferPages(0, n) + BufferPages(1, n));
  }

  TierBytes BytesFor(int64_t tokens) const { return ForkBytesFor(0, tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const;
};

}  // namespace litecache::lab::infinigen
