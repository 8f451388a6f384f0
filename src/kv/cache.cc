#include "kv/cache.h"

#include "base/error.h"

namespace litecache::kv {
namespace {

[[noreturn]] void NoPrefixes(std::string_view policy) {
  throw Unsupported("KV policy '{}' does not share prefixes here", policy);
}

}  // namespace

void Cache::Recur(Stream&, int64_t layer, const Step&, const ops::GatedDeltaWeights&,
                  const ops::GatedDeltaInputs&, const MatrixView&, const MatrixView&) {
  LC_CHECK(false, "layer {} of a cache without states", layer);
}
void Cache::Truncate(SequenceId, int64_t) {
  throw Unsupported("KV policy '{}' cannot take back tokens here", policy());
}
int64_t Cache::PrefixLength(SequenceId) const { NoPrefixes(policy()); }
SequenceId Cache::ForkPrefix(SequenceId, int64_t) { NoPrefixes(policy()); }
TierBytes Cache::BytesHeld(std::span<const SequenceId>) const { NoPrefixes(policy()); }
uint64_t Cache::BlockBytes() const { NoPrefixes(policy()); }
void Cache::ExportBlock(SequenceId, int64_t, std::span<std::byte>) const { NoPrefixes(policy()); }
void Cache::ImportBlock(SequenceId, std::span<const std::byte>) { NoPrefixes(policy()); }

}  // namespace litecache::kv
