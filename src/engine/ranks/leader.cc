#include "engine/ranks/leader.h"

#include "base/error.h"
#include "base/logging.h"

namespace litecache::engine {

void LeadingCache::AllocateAhead(const kv::TierBytes& bytes) {
  own().AllocateAhead(bytes);
  calls_.Put(Call::kAllocateAhead).Put(static_cast<int64_t>(bytes.device));
  calls_.Put(static_cast<int64_t>(bytes.host));
}

kv::SequenceId LeadingCache::Create() {
  const kv::SequenceId id = own().Create();
  calls_.Put(Call::kCreate).Put(id);
  return id;
}

kv::SequenceId LeadingCache::Fork(kv::SequenceId parent) {
  const kv::SequenceId id = own().Fork(parent);
  calls_.Put(Call::kFork).Put(parent).Put(id);
  return id;
}

kv::SequenceId LeadingCache::ForkPrefix(kv::SequenceId parent, int64_t tokens) {
  const kv::SequenceId id = own().ForkPrefix(parent, tokens);
  calls_.Put(Call::kForkPrefix).Put(parent).Put(tokens).Put(id);
  return id;
}

void LeadingCache::Release(kv::SequenceId id) {
  own().Release(id);
  calls_.Put(Call::kRelease).Put(id);
}

void LeadingCache::Truncate(kv::SequenceId id, int64_t tokens) {
  own().Truncate(id, tokens);
  calls_.Put(Call::kTruncate).Put(id).Put(tokens);
}

void LeadingDecoder::Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions, kv::Cache& cache,
                             std::span<const int64_t> logit_rows, const MatrixView& logits) {
  LC_CHECK(&cache == &cache_);
  group_.Check();
  // Where this rank has no room, neither have the others, and they are not told.
  cache_.own().BeginStep(step);
  Words& calls = cache_.calls();
  PutStep(step, &calls.Put(Call::kForward));
  calls.PutAll(tokens).PutAll(positions).PutAll(logit_rows);
  group_.Broadcast(&calls.all());
  calls.Clear();
  own_.Forward(stream, step, tokens, positions, cache_.own(), logit_rows, logits);
}

LeadingDecoder::~LeadingDecoder() {
  try {
    cache_.calls().Put(Call::kUnload);
    group_.Broadcast(&cache_.calls().all());
  } catch (const Error& error) {  // a rank has ended
    LogDebug("ranks: {}", error.what());
  }
}

}  // namespace litecache::engine
