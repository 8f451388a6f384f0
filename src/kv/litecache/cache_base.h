// What the CPU and GPU caches of policy litecache share: the two tiers, the page tables of every
// sequence, and prefixes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kv/cache.h"
#include "kv/litecache/growth.h"
#include "kv/litecache/tiers.h"
#include "kv/retrieve/retriever.h"
#include "kv/row_store.h"
#include "kv/step/step_check.h"

namespace litecache::kv {

class LiteCacheBase : public Cache, public RowStore {
 public:
  std::string_view policy() const override { return "litecache"; }
  const Layout& layout() const override { return tiers_.shape.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return tiers_.shape.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return tiers_.shape.ForkBytesFor(shared, tokens);
  }

  void AllocateAhead(const TierBytes& bytes) override {
    tiers_.device.AllocateAhead(bytes.device);
    tiers_.host.AllocateAhead(bytes.host);
  }
  PagePool* device_pages() override { return &tiers_.device; }
  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  bool SelectsRows() const override { return true; }
  int64_t Length(SequenceId id) const override { return tiers_.resident.Length(id); }

  // Prefixes consist of stored rows; generated rows in the recent window, slots and labels stay
  // with their sequence.
  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(SequenceId id) const override { return tiers_.store.Length(id); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override;
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override;
  uint64_t BlockBytes() const override;
  void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const override;
  void ImportBlock(SequenceId id, std::span<const std::byte> bytes) override;

  int64_t PredictionSource(int64_t layer) const override;

 protected:
  // Truncate() but for what slots hold. Returns whether slots have lost pages.
  bool TruncateTables(SequenceId id, int64_t tokens);

  // host: the store's memory; null: the store is in device memory.
  LiteCacheBase(Device& device, std::unique_ptr<Device> host, const Shape& shape,
                const HeadPlan& plan, std::unique_ptr<Retriever> retriever,
                const TierBytes& budget);

  const std::unique_ptr<Device> host_;
  Tiers tiers_;
  TierGrowth growth_;
  const std::unique_ptr<Retriever> retriever_;
  StepCheck check_;
};

}  // namespace litecache::kv
