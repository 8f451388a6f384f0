// All sizes of policy litecache, from the layout and the options: where each head's rows are, how
// many rows a head keeps, what a sequence costs.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/heads/head_plan.h"
#include "kv/layout.h"
#include "kv/retrieve/retriever.h"
#include "litecache/named_bytes.h"
#include "ops/common/row_format.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/slots/code_slots.h"
#include "ops/slots/slot_windows.h"

namespace litecache::kv {

// Sizes that depend only on a sequence's length are in ops/slots/slot_windows.h.
struct Shape : ops::SlotWindows<int64_t> {
  // metadata_tokens: Retriever::metadata_tokens(). device: the type of the device tier.
  Shape(const Layout& layout, const KvOptions& options, const HeadPlan& plan,
        int64_t metadata_tokens, DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t group = 0;  // query heads a KV head

  PageLayout pages;       // of the device pool; resident rows use them
  ops::RowFormat format;  // rows on the device
  // Rows in the host store. If a GPU's store keeps scales apart, they are on the device, in
  // ScalesTable(), so that the link moves codes only.
  ops::RowFormat store_format;
  // A prompt chunk cannot attend rows in the store directly: they are quantized, or in another
  // memory.
  bool staged = false;
  // On a GPU attention reads one set of staging pages while the other is being copied to or from
  // the store.
  int64_t staging_sets = 1;
  int64_t store_page_tokens = 0;
  uint64_t store_page_bytes = 0;
  int64_t page_slots = 0;  // slots in a device page
  // If pulled rows stay the 8-bit codes of the store: cached slots in separate pages behind those
  // of sink and ring. page_slots 0: cached slots hold rows like all others.
  ops::cuda::CodeSlots codes;
  int64_t metadata_tokens = 0;  // tokens that a page of metadata covers; 0: no metadata
  int64_t resident_whole = 0;   // KvOptions

  // Index of a (layer, KV head) among the lists of its table, -1 if it is not in the table; a
  // layer's lists are adjacent, in head order.
  std::vector<int64_t> offloaded_list, resident_list, metadata_list;
  int64_t offloaded = 0, resident = 0, metadata = 0;  // lists
  int64_t max_offloaded_in_layer = 0;

  int64_t Index(int64_t layer, int64_t head) const { return layer * layout.kv_heads + head; }
  bool offloads(int64_t layer, int64_t head) const {
    return offloaded_list[static_cast<size_t>(Index(layer, head))] >= 0;
  }

  // Whether resident heads attend every row in this step.
  bool AttendsWhole(const Step& step) const;
  // Whether any head of the layer is offloaded.
  bool offloads(int64_t layer) const;

  TableShape StoreTable() const;
  TableShape ResidentTable() const;
  TableShape MetadataTable() const;
  TableShape ScalesTable() const;  // without lists if rows have their scales in them

  // Device pages of a head's slots, for a sequence of n tokens.
  int64_t SlotPages(int64_t n) const;

  // ---- Labels: f32 [offloaded][group][head_dim], in device pages ----
  uint64_t label_bytes() const {
    return static_cast<uint64_t>(group * layout.head_dim) * sizeof(float);
  }
  int64_t labels_a_page() const { return static_cast<int64_t>(pages.page_bytes / label_bytes()); }
  int64_t LabelPages() const { return (offloaded + labels_a_page() - 1) / labels_a_page(); }

  // Staging pages for a prefill chunk that ends at token n, if the store's rows cannot be attended
  // directly: staging_sets times one layer's rows in the device's format.
  int64_t StagingPages(int64_t n) const {
    return staged ? staging_sets * max_offloaded_in_layer * pages.BlocksFor(n) : 0;
  }

  TierBytes BytesFor(int64_t tokens) const;
  // BytesFor(tokens).device by purpose.
  std::vector<NamedBytes> DeviceParts(int64_t tokens) const;
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const;
};

// The value of options.aggregation.
ops::Aggregation AggregationOf(const KvOptions& options);

// The store's format by options.host_rows, for a device of this type.
ops::RowFormat StoreFormat(const Layout& layout, const KvOptions& options, DeviceType device);

// Whether a GPU's cached slots keep the codes of the store's rows: if kernels pull and attend them.
// Transfers by the host's threads use slots of unquantized rows. The environment variable
// LITECACHE_SLOT_CODES=0 turns codes off, to measure their effect.
bool KeepsCodes(const Layout& layout, const KvOptions& options);

}  // namespace litecache::kv
