#include "kv/litecache/prefix_blocks.h"

#include <vector>

#include "base/error.h"

namespace litecache::kv {
namespace {

// The format of rows in a block: scales are with the rows, even if the store keeps them apart.
ops::RowFormat BlockFormat(const Tiers& tiers) {
  ops::RowFormat format = tiers.shape.store_format;
  format.scales_apart = false;
  return format;
}
TableUnit StoreUnit(const Tiers& tiers) { return {1, tiers.shape.store_format.row_bytes()}; }
uint64_t StoreBytes(const Tiers& tiers) {
  return tiers.store.BytesOf(kBlockTokens, {1, BlockFormat(tiers).row_bytes()});
}
constexpr TableUnit kScalesUnit{1, sizeof(ops::RowScales)};

// A block's rows in the store's format: codes and scales apart, list after list.
struct ApartRows {
  explicit ApartRows(const Tiers& tiers)
      : format(BlockFormat(tiers)),
        rows(static_cast<size_t>(tiers.shape.offloaded * kBlockTokens)),
        codes(rows * tiers.shape.store_format.row_bytes()),
        scales(rows) {}

  std::byte* Codes(size_t row) { return codes.data() + row * (codes.size() / rows); }
  std::byte* Scales() { return reinterpret_cast<std::byte*>(scales.data()); }

  ops::RowFormat format;
  size_t rows;
  std::vector<std::byte> codes;
  std::vector<ops::RowScales> scales;
};

void ExportStore(const Tiers& tiers, SequenceId id, int64_t begin, std::byte* out) {
  if (!tiers.shape.store_format.scales_apart) {
    tiers.store.Export(id, begin, kBlockTokens, StoreUnit(tiers), out);
    return;
  }
  ApartRows apart(tiers);
  tiers.store.Export(id, begin, kBlockTokens, StoreUnit(tiers), apart.codes.data());
  tiers.scales.Export(id, begin, kBlockTokens, kScalesUnit, apart.Scales());
  for (size_t i = 0; i < apart.rows; ++i, out += apart.format.row_bytes()) {
    ops::JoinScales(apart.format, apart.Codes(i), apart.scales[i], out);
  }
}

void ImportStore(SequenceId id, int64_t begin, const std::byte* in, Tiers* tiers) {
  if (!tiers->shape.store_format.scales_apart) {
    tiers->store.Import(id, begin, kBlockTokens, StoreUnit(*tiers), in);
    return;
  }
  ApartRows apart(*tiers);
  for (size_t i = 0; i < apart.rows; ++i, in += apart.format.row_bytes()) {
    apart.scales[i] = ops::SplitScales(apart.format, in, apart.Codes(i));
  }
  tiers->store.Import(id, begin, kBlockTokens, StoreUnit(*tiers), apart.codes.data());
  tiers->scales.Import(id, begin, kBlockTokens, kScalesUnit, apart.Scales());
}

TableUnit ResidentUnit(const Tiers& tiers) { return {1, tiers.shape.format.row_bytes()}; }

}  // namespace

TierBytes BytesHeld(const Tiers& tiers, std::span<const SequenceId> ids) {
  const int64_t device = tiers.resident.PagesHeld(ids) + tiers.metadata.PagesHeld(ids) +
                         tiers.scales.PagesHeld(ids) + tiers.slots.PagesHeld(ids);
  return {.device = static_cast<uint64_t>(device) * tiers.device.page_bytes(),
          .host = static_cast<uint64_t>(tiers.store.PagesHeld(ids)) * tiers.host.page_bytes()};
}

uint64_t BlockBytes(const Tiers& tiers, const TableUnit& metadata) {
  return StoreBytes(tiers) + tiers.resident.BytesOf(kBlockTokens, ResidentUnit(tiers)) +
         tiers.metadata.BytesOf(kBlockTokens, metadata);
}

void ExportBlock(const Tiers& tiers, const TableUnit& metadata, SequenceId id, int64_t begin,
                 std::span<std::byte> out) {
  LC_CHECK(out.size() == BlockBytes(tiers, metadata) && begin % kBlockTokens == 0 &&
           begin + kBlockTokens <= tiers.store.Length(id));
  std::byte* next = out.data();
  ExportStore(tiers, id, begin, next);
  next += StoreBytes(tiers);
  tiers.resident.Export(id, begin, kBlockTokens, ResidentUnit(tiers), next);
  next += tiers.resident.BytesOf(kBlockTokens, ResidentUnit(tiers));
  tiers.metadata.Export(id, begin, kBlockTokens, metadata, next);
}

void ImportBlock(const TableUnit& metadata, SequenceId id, std::span<const std::byte> bytes,
                 Tiers* tiers) {
  const int64_t begin = tiers->resident.Length(id);
  LC_CHECK(bytes.size() == BlockBytes(*tiers, metadata) && begin % kBlockTokens == 0 &&
           begin == tiers->store.Length(id));
  const std::vector<SequenceTable::Growth> growth = {{id, kBlockTokens}};
  tiers->host.Reserve(tiers->store.PagesNeeded(growth));
  tiers->device.Reserve(tiers->resident.PagesNeeded(growth) + tiers->metadata.PagesNeeded(growth) +
                        tiers->scales.PagesNeeded(growth));
  tiers->store.Grow(growth);
  tiers->resident.Grow(growth);
  tiers->metadata.Grow(growth);
  tiers->scales.Grow(growth);
  const std::byte* next = bytes.data();
  ImportStore(id, begin, next, tiers);
  next += StoreBytes(*tiers);
  tiers->resident.Import(id, begin, kBlockTokens, ResidentUnit(*tiers), next);
  next += tiers->resident.BytesOf(kBlockTokens, ResidentUnit(*tiers));
  tiers->metadata.Import(id, begin, kBlockTokens, metadata, next);
  tiers->store.Commit(id, kBlockTokens);
  tiers->resident.Commit(id, kBlockTokens);
  tiers->metadata.Commit(id, kBlockTokens);
  tiers->scales.Commit(id, kBlockTokens);
}

}  // namespace litecache::kv
