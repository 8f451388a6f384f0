#include "kv/litecache/cache_base.h"

#include <utility>

#include "base/error.h"
#include "kv/litecache/prefix_blocks.h"

namespace litecache::kv {

LiteCacheBase::LiteCacheBase(Device& device, std::unique_ptr<Device> host, const Shape& shape,
                             const HeadPlan& plan, std::unique_ptr<Retriever> retriever,
                             const TierBytes& budget)
    : host_(std::move(host)),
      tiers_(device, host_ != nullptr ? *host_ : device, shape, plan, budget),
      growth_(tiers_),
      retriever_(std::move(retriever)) {}

SequenceId LiteCacheBase::Create() {
  const SequenceId id = tiers_.resident.Create();
  LC_CHECK(tiers_.store.Create() == id && tiers_.metadata.Create() == id &&
           tiers_.scales.Create() == id);
  tiers_.slots.Create(id);
  return id;
}

SequenceId LiteCacheBase::Fork(SequenceId parent) {
  const SequenceId id = tiers_.resident.Fork(parent);
  LC_CHECK(tiers_.store.Fork(parent) == id && tiers_.metadata.Fork(parent) == id &&
           tiers_.scales.Fork(parent) == id);
  tiers_.slots.Fork(parent, id);
  return id;
}

SequenceId LiteCacheBase::ForkPrefix(SequenceId parent, int64_t tokens) {
  LC_CHECK(tokens % kPrefixTokens == 0 && tokens <= PrefixLength(parent), "{} of {} tokens", tokens,
           PrefixLength(parent));
  const SequenceId id = tiers_.resident.ForkPrefix(parent, tokens);
  LC_CHECK(tiers_.store.ForkPrefix(parent, tokens) == id &&
           tiers_.metadata.ForkPrefix(parent, tokens) == id &&
           tiers_.scales.ForkPrefix(parent, tokens) == id);
  tiers_.slots.Create(id);
  return id;
}

void LiteCacheBase::Release(SequenceId id) {
  tiers_.resident.Release(id);
  tiers_.store.Release(id);
  tiers_.metadata.Release(id);
  tiers_.scales.Release(id);
  tiers_.slots.Release(id);
}

bool LiteCacheBase::TruncateTables(SequenceId id, int64_t tokens) {
  LC_CHECK(tokens >= 0 && tokens <= Length(id), "{} of {} tokens", tokens, Length(id));
  tiers_.resident.Truncate(id, tokens);
  if (tiers_.store.Length(id) > tokens) {
    tiers_.store.Truncate(id, tokens);
    tiers_.scales.Truncate(id, tokens);
  }
  // A shared entry that rejected keys are part of is encoded anew.
  const int64_t unit = retriever_->shares_entries() ? retriever_->metadata_unit().tokens : 1;
  if (tiers_.metadata.Length(id) > tokens) tiers_.metadata.Truncate(id, tokens / unit * unit);
  return tiers_.slots.Shrink(id, tiers_.shape.SlotPages(tokens));
}

TierBytes LiteCacheBase::BytesHeld(std::span<const SequenceId> ids) const {
  return kv::BytesHeld(tiers_, ids);
}

uint64_t LiteCacheBase::BlockBytes() const {
  return kv::BlockBytes(tiers_, retriever_->metadata_unit());
}

void LiteCacheBase::ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const {
  kv::ExportBlock(tiers_, retriever_->metadata_unit(), id, begin, out);
}

void LiteCacheBase::ImportBlock(SequenceId id, std::span<const std::byte> bytes) {
  kv::ImportBlock(retriever_->metadata_unit(), id, bytes, &tiers_);
}

int64_t LiteCacheBase::PredictionSource(int64_t layer) const {
  return tiers_.shape.offloads(layer) ? tiers_.plan.sources[static_cast<size_t>(layer)] : -1;
}

}  // namespace litecache::kv
