// All sizes of policies that keep rows on the host and transfer whole contexts to the device for
// each layer, as kvpr does.
#pragma once

#include <cstdint>

#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv::offload {

// The store's format by options.host_rows. Throws InvalidArgument.
ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options);

// On the CPU a page holds rows of one KV head. On a GPU it holds those of all KV heads of a layer
// in its table, head after head, so that the copy engine moves hundreds of KiB at a time
// (lab/notes/gpu/transfer.md); the pages of both tiers have the same size.
struct Shape {
  // device_share: share of each layer's KV heads, counted from the first, whose rows stay on the
  // device. keeps_inputs: whether the layers' inputs are kept beside the rows. Throws
  // InvalidArgument.
  Shape(const Layout& layout, const KvOptions& options, double device_share, bool keeps_inputs,
        DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t device_heads = 0;  // a layer's KV heads [0, device_heads) stay on the device
  bool on_gpu = false;
  ops::RowFormat format;  // rows on the device
  ops::RowFormat store_format;
  uint64_t page_bytes = 0;  // of the device pool
  int64_t resident_page_tokens = 0;
  int64_t staging_page_tokens = 0;  // tokens in a page of rows as attention reads them
  uint64_t store_page_bytes = 0;
  int64_t store_page_tokens = 0;
  // A token's input of a layer, in the rows' dtype, stored as a row: one half as K, the other as V.
  ops::RowFormat input_format;
  bool keeps_inputs = false;
  int64_t batch_groups = 1;
  int64_t input_page_tokens = 0;  // tokens in a page of the store

  int64_t host_heads() const { return layout.kv_heads - device_heads; }
  int64_t input_staging_tokens() const {
    return static_cast<int64_t>(page_bytes / input_format.row_bytes());
  }
  // Whether rows are transferred in the store's format and dequantized by a kernel.
  bool expands() const { return on_gpu && store_format.quantized(); }

  TableShape StoreTable() const;
  TableShape ResidentTable() const;
  // Table of transferred inputs, and on a GPU of layer 0's: those stay on the device, where they
  // take a fraction of the staging buffers' memory.
  TableShape InputTable() const;
  TableShape FirstInputTable() const;
  int64_t InputList(int64_t layer) const { return on_gpu ? layer - 1 : layer; }
  int64_t StoreList(int64_t layer, int64_t head) const {
    return layer * host_heads() + head - device_heads;
  }
  int64_t ResidentList(int64_t layer, int64_t head) const { return layer * device_heads + head; }

  static int64_t Blocks(int64_t tokens, int64_t page_tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
  }
  // Pages of one staging buffer: a layer's rows of a sequence of n tokens (in the store's format,
  // too, if they are dequantized), and the inputs of its first `inputs` tokens.
  int64_t StagingPages(int64_t n, int64_t inputs) const;

  // Number of staging buffers.
  static constexpr int64_t kCpuBuffers = 2, kGpuBuffers = 3;
  int64_t buffers() const { return on_gpu ? kGpuBuffers : kCpuBuffers; }
  // inputs: number of tokens whose inputs may be staged.
  TierBytes BytesFor(int64_t tokens, int64_t inputs) const {
    return ForkBytesFor(0, tokens, inputs);
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens, int64_t inputs) const;

 private:
  void PlaceOnCpu();
  void PlaceOnGpu();
  int64_t Lists(int64_t heads) const { return layout.layers * (on_gpu ? heads > 0 : heads); }
};

}  // namespace litecache::kv::offload
