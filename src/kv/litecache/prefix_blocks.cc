#include "kv/litecache/prefix_blocks.h"

#include <vector>

#include "base/error.h"

namespace litecache::kv {
namespace {

TableUnit StoreUnit(const Tiers& tiers) { return {1, tiers.shape.store_format.row_bytes()}; }
TableUnit ResidentUnit(const Tiers& tiers) { return {1, tiers.shape.format.row_bytes()}; }

}  // namespace

TierBytes BytesHeld(const Tiers& tiers, std::span<const SequenceId> ids) {
  const int64_t device =
      tiers.resident.PagesHeld(ids) + tiers.metadata.PagesHeld(ids) + tiers.slots.PagesHeld(ids);
  return {.device = static_cast<uint64_t>(device) * tiers.device.page_bytes(),
          .host = static_cast<uint64_t>(tiers.store.PagesHeld(ids)) * tiers.host.page_bytes()};
}

uint64_t BlockBytes(const Tiers& tiers, const TableUnit& metadata) {
  return tiers.store.BytesOf(kBlockTokens, StoreUnit(tiers)) +
         tiers.resident.BytesOf(kBlockTokens, ResidentUnit(tiers)) +
         tiers.metadata.BytesOf(kBlockTokens, metadata);
}

void ExportBlock(const Tiers& tiers, const TableUnit& metadata, SequenceId id, int64_t begin,
                 std::span<std::byte> out) {
  LC_CHECK(out.size() == BlockBytes(tiers, metadata) && begin % kBlockTokens == 0 &&
           begin + kBlockTokens <= tiers.store.Length(id));
  std::byte* next = out.data();
  tiers.store.Export(id, begin, kBlockTokens, StoreUnit(tiers), next);
  next += tiers.store.BytesOf(kBlockTokens, StoreUnit(tiers));
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
  tiers->device.Reserve(tiers->resident.PagesNeeded(growth) + tiers->metadata.PagesNeeded(growth));
  tiers->store.Grow(growth);
  tiers->resident.Grow(growth);
  tiers->metadata.Grow(growth);
  const std::byte* next = bytes.data();
  tiers->store.Import(id, begin, kBlockTokens, StoreUnit(*tiers), next);
  next += tiers->store.BytesOf(kBlockTokens, StoreUnit(*tiers));
  tiers->resident.Import(id, begin, kBlockTokens, ResidentUnit(*tiers), next);
  next += tiers->resident.BytesOf(kBlockTokens, ResidentUnit(*tiers));
  tiers->metadata.Import(id, begin, kBlockTokens, metadata, next);
  tiers->store.Commit(id, kBlockTokens);
  tiers->resident.Commit(id, kBlockTokens);
  tiers->metadata.Commit(id, kBlockTokens);
}

}  // namespace litecache::kv
