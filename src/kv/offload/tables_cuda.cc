#include "kv/offload/tables_cuda.h"

#include <vector>

namespace litecache::kv::offload {

using ops::cuda::InputTable;
using ops::cuda::RowTable;

Tables::Tables(Device& device, const Shape& shape) : shape_(shape) {
  const int64_t heads = shape.layout.kv_heads, own = shape.device_heads;
  const auto table = static_cast<size_t>(shape.layout.layers * heads);
  std::vector<int32_t> lists(2 * table + kBuffers * static_cast<size_t>(heads));
  for (int64_t layer = 0; layer < shape.layout.layers; ++layer) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto at = static_cast<size_t>(layer * heads + head);
      const bool stays = head < own;
      lists[at] = stays ? static_cast<int32_t>(shape.ResidentList(layer, head)) : -1;
      lists[table + at] = stays ? -1 : static_cast<int32_t>(shape.StoreList(layer, head));
    }
  }
  for (size_t b = 0; b < kBuffers; ++b) {
    const int64_t first = static_cast<int64_t>(b) * shape.host_heads() - own;
    for (int64_t head = 0; head < heads; ++head) {
      lists[2 * table + b * static_cast<size_t>(heads) + static_cast<size_t>(head)] =
          head < own ? -1 : static_cast<int32_t>(first + head);
    }
  }
  lists_ = device.Allocate(lists.size() * sizeof(int32_t));
  device.Upload(lists_.data(), lists.data(), lists_.size());
}

RowTable Tables::Resident(int64_t layer) const {
  return {.table = ops::cuda::kResident,
          .lists = static_cast<int32_t>(shape_.layout.layers * shape_.device_heads),
          .page_rows = static_cast<int32_t>(shape_.resident_page_tokens),
          .format = shape_.format,
          .list_of_head = lists_.as<int32_t>() + layer * shape_.layout.kv_heads};
}

RowTable Tables::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(shape_.layout.layers * shape_.host_heads()),
          .page_rows = static_cast<int32_t>(shape_.store_page_tokens),
          .format = shape_.store_format,
          .list_of_head =
              lists_.as<int32_t>() + (shape_.layout.layers + layer) * shape_.layout.kv_heads};
}

RowTable Tables::Rows(size_t buffer) const {
  const int64_t lists = 2 * shape_.layout.layers + static_cast<int64_t>(buffer);
  return {.table = kRows,
          .lists = static_cast<int32_t>(static_cast<int64_t>(kBuffers) * shape_.host_heads()),
          .page_rows = static_cast<int32_t>(shape_.staging_page_tokens),
          .format = shape_.format,
          .list_of_head = lists_.as<int32_t>() + lists * shape_.layout.kv_heads};
}

RowTable Tables::Arrived(size_t buffer) const {
  RowTable table = Rows(buffer);
  table.table = kArrived;
  table.page_rows = static_cast<int32_t>(shape_.store_page_tokens);
  table.format = shape_.store_format;
  return table;
}

InputTable Tables::KeptInputs(int64_t layer) const {
  const bool first = layer == 0;
  const TableShape table = first ? shape_.FirstInputTable() : shape_.InputTable();
  return {.table = first ? kFirstInputs : kHostInputs,
          .lists = static_cast<int32_t>(table.lists),
          .list = static_cast<int32_t>(first ? 0 : shape_.InputList(layer)),
          .page_rows = static_cast<int32_t>(table.page_tokens)};
}

InputTable Tables::StagedInputs(size_t buffer) const {
  return {.table = kStagedInputs,
          .lists = static_cast<int32_t>(kBuffers),
          .list = static_cast<int32_t>(buffer),
          .page_rows = static_cast<int32_t>(shape_.input_page_tokens)};
}

void SequencePages::Update(Device& device, TableUploads& uploads, const Shape& shape,
                           const SequenceTable& resident_table, const SequenceTable& store_table,
                           const SequenceTable& input_table, const SequenceTable& first_input_table,
                           SequenceId id) {
  // A page for a layer holds `heads` lists of `page_tokens` rows each.
  const auto follow = [&](DevicePages& pages, const SequenceTable& table, int64_t heads,
                          int64_t page_tokens, uint64_t row_bytes) {
    std::byte* const* const* lists = table.Lists(id);
    const uint64_t head_bytes = static_cast<uint64_t>(page_tokens) * row_bytes;
    pages.Follow(
        device, table, id, table.lists() * heads,
        [&](int64_t list, int64_t b) {
          return lists[list / heads][b] + static_cast<uint64_t>(list % heads) * head_bytes;
        },
        [&](std::byte** target, std::byte* const* changed, size_t count) {
          uploads.Add(target, changed, count);
        });
  };
  follow(store, store_table, shape.host_heads(), shape.store_page_tokens,
         shape.store_format.row_bytes());
  follow(resident, resident_table, shape.device_heads, shape.resident_page_tokens,
         shape.format.row_bytes());
  follow(inputs, input_table, 1, shape.InputTable().page_tokens, 0);
  follow(first_inputs, first_input_table, 1, shape.FirstInputTable().page_tokens, 0);
}

}  // namespace litecache::kv::offload
