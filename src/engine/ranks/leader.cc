#include "engine/ranks/leader.h"

#include <fmt/core.h>

#include <cstring>

#include "base/error.h"
#include "base/logging.h"
#include "engine/ranks/block_parts.h"

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

void LeadingCache::SendCalls() const {
  group_.Check();
  group_.Broadcast(&calls_.all());
  calls_.Clear();
}

std::string LeadingCache::DescribeBlocks() {
  calls_.Put(Call::kDescribeBlocks);
  ExpectAnswers(group_);
  SendCalls();
  WaitForAnswers(group_);
  std::string identity = fmt::format("{} ranks", group_.ranks());
  part_ends_ = {own().BlockBytes()};
  for (int rank = 1; rank < group_.ranks(); ++rank) {
    const PublishedPart part = PartOf(group_, rank);
    identity += fmt::format(" {:016x}", part.identity);
    part_ends_.push_back(part_ends_.back() + part.bytes);
  }
  group_.SharedMemory(part_ends_.back());  // fails here rather than with a block
  return identity;
}

void LeadingCache::ExportBlock(kv::SequenceId id, int64_t begin, std::span<std::byte> out) const {
  LC_CHECK(out.size() == BlockBytes());
  const size_t own_bytes = part_ends_.front();
  const std::span<std::byte> shared = group_.SharedMemory(out.size());
  calls_.Put(Call::kExportBlock).Put(id).Put(begin).PutAll<uint64_t>(part_ends_);
  ExpectAnswers(group_);
  SendCalls();
  own().ExportBlock(id, begin, out.first(own_bytes));
  WaitForAnswers(group_);
  std::memcpy(out.data() + own_bytes, shared.data() + own_bytes, out.size() - own_bytes);
}

void LeadingCache::ImportBlock(kv::SequenceId id, std::span<const std::byte> bytes) {
  LC_CHECK(bytes.size() == BlockBytes());
  const size_t own_bytes = part_ends_.front();
  own().ImportBlock(id, bytes.first(own_bytes));  // the others have room if this rank has
  WaitForAnswers(group_);                         // they may still read the last block
  const std::span<std::byte> shared = group_.SharedMemory(bytes.size());
  std::memcpy(shared.data() + own_bytes, bytes.data() + own_bytes, bytes.size() - own_bytes);
  calls_.Put(Call::kImportBlock).Put(id).PutAll<uint64_t>(part_ends_);
  ExpectAnswers(group_);
  SendCalls();
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
