// What sequences of policy litecache share with others, on either backend: stored rows, resident
// rows and metadata (kv/cache.h, "Prefixes").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/cache.h"
#include "kv/litecache/tiers.h"

namespace litecache::kv {

// The functions of Cache with the same names. metadata: the retriever's unit.
TierBytes BytesHeld(const Tiers& tiers, std::span<const SequenceId> ids);
uint64_t BlockBytes(const Tiers& tiers, const TableUnit& metadata);
void ExportBlock(const Tiers& tiers, const TableUnit& metadata, SequenceId id, int64_t begin,
                 std::span<std::byte> out);
void ImportBlock(const TableUnit& metadata, SequenceId id, std::span<const std::byte> bytes,
                 Tiers* tiers);

}  // namespace litecache::kv
