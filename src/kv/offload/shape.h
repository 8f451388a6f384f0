// Every size of policies that keep all rows on the host and bring whole contexts to the device for
// a layer, as kvpr does.
#pragma once

#include <cstdint>

#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv::offload {

// What options.host_rows says. Throws InvalidArgument.
ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options);

// On the CPU a page holds rows of one KV head. On a GPU it holds those of all KV heads of a layer
// that its table has, head after head, so that the copy engine is given hundreds of KiB at a time
// (lab/notes/gpu/transfer.md); the pages of both tiers have one size.
struct Shape {
  // device_share: of each layer's KV heads, the first ones, whose rows stay on the device.
  // keeps_inputs: the layers' inputs are kept beside the rows. Throws InvalidArgument.
  Shape(const Layout& layout, const KvOptions& options, double device_share, bool keeps_inputs,
        DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t device_heads = 0;  // a layer's KV heads [0, device_heads) stay on the device
  bool on_gpu = false;
  ops::RowFormat format;  // rows on the device
  ops::RowFormat store_format;
  uint64_t page_bytes = 0;  // of the device pool
  int64_t resident_page_tokens = 0;
  int64_t staging_page_tokens = 0;  // rows as attention reads them
  uint64_t store_page_bytes = 0;
  int64_t store_page_tokens = 0;
  // A token's input of a layer, in the rows' dtype, written as a row: half of it as K, half as V.
  ops::RowFormat input_format;
  bool keeps_inputs = false;
  int64_t batch_groups = 1;
  int64_t input_page_tokens = 0;  // in a page of the store

  int64_t host_heads() const { return layout.kv_heads - device_heads; }
  int64_t input_staging_tokens() const {
    return static_cast<int64_t>(page_bytes / input_format.row_bytes());
  }
  // A GPU's copy engine brings rows as the store has them, and a kernel expands them.
  bool expands() const { return on_gpu && store_format.quantized(); }

  TableShape StoreTable() const;
  TableShape ResidentTable() const;
  // Of the inputs that travel, and of layer 0's where they stay on the device: on a GPU, where they
  // take a fraction of what the staging buffers do.
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
  // Pages of one of the staging buffers: a layer's rows of a sequence of n tokens (as they
  // travel, too, where they are expanded), and the inputs of the first `inputs` of them.
  int64_t StagingPages(int64_t n, int64_t inputs) const;

  // Staging buffers.
  static constexpr int64_t kCpuBuffers = 2, kGpuBuffers = 3;
  int64_t buffers() const { return on_gpu ? kGpuBuffers : kCpuBuffers; }
  // inputs: tokens whose inputs may be staged.
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
