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

void LeadingCache::Announce(const kv::Step& step, std::span<const int32_t> tokens,
                            std::span<const int32_t> positions,
                            std::span<const int64_t> logit_rows) {
  step_.Clear();
  PutStep(step, &step_.Put(Call::kForward));
  step_.PutAll(tokens).PutAll(positions).PutAll(logit_rows);
}

void LeadingCache::BeginStep(const kv::Step& step) {
  group_.Check();
  own().BeginStep(step);
  std::vector<int64_t>& words = calls_.all();
  words.insert(words.end(), step_.all().begin(), step_.all().end());
  group_.Broadcast(&words);
  calls_.Clear();
}

LeadingCache::~LeadingCache() {
  try {
    group_.Broadcast(&calls_.Put(Call::kUnload).all());
  } catch (const Error& error) {  // a rank has ended
    LogDebug("ranks: {}", error.what());
  }
}

void LeadingDecoder::Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions, kv::Cache& cache,
                             std::span<const int64_t> logit_rows, const MatrixView& logits) {
  LC_CHECK(&cache == &cache_);
  cache_.Announce(step, tokens, positions, logit_rows);
  own_.Forward(stream, step, tokens, positions, cache, logit_rows, logits);
}

}  // namespace litecache::engine
