// Rank 0's cache and decoder: they do what their own part does, and tell the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/ranks/calls.h"
#include "engine/ranks/counters.h"
#include "kv/forwarding_cache.h"
#include "model/decoder.h"
#include "parallel/process_group.h"

namespace litecache::engine {

// Calls are sent with the next step that this rank's part has room for (then the others' have,
// too), or with the next block of a prefix that is written or read.
class LeadingCache final : public kv::ForwardingCache {
 public:
  // All must outlive this. part: rank 0's.
  LeadingCache(kv::Cache& own, const model::ModelConfig& part, parallel::ProcessGroup& group)
      : ForwardingCache(own), group_(group), counters_(group, part, own) {}
  // Ends the others' part of the engine.
  ~LeadingCache() override;

  void AllocateAhead(const kv::TierBytes& bytes) override;
  kv::SequenceId Create() override;
  kv::SequenceId Fork(kv::SequenceId parent) override;
  void Release(kv::SequenceId id) override;
  void Truncate(kv::SequenceId id, int64_t tokens) override;
  bool SharesPrefixes() const override { return own().SharesPrefixes(); }
  bool CutsPrefixes() const override { return own().CutsPrefixes(); }
  int64_t PrefixLength(kv::SequenceId id) const override { return own().PrefixLength(id); }
  kv::SequenceId ForkPrefix(kv::SequenceId parent, int64_t tokens) override;
  kv::TierBytes BytesHeld(std::span<const kv::SequenceId> ids) const override {
    return own().BytesHeld(ids);
  }
  // What determines the bytes of the others' parts of a block. Call it before the three below.
  std::string DescribeBlocks();
  // A block has the parts of all ranks, one behind another.
  uint64_t BlockBytes() const override { return part_ends_.back(); }
  void ExportBlock(kv::SequenceId id, int64_t begin, std::span<std::byte> out) const override;
  void ImportBlock(kv::SequenceId id, std::span<const std::byte> bytes) override;

  // The step that begins next, and what the decoder is called with.
  void Announce(const kv::Step& step, std::span<const int32_t> tokens,
                std::span<const int32_t> positions, std::span<const int64_t> logit_rows);
  void BeginStep(const kv::Step& step) override;
  std::optional<uint64_t> ReplayKey(const kv::Step& step) const override {
    return own().ReplayKey(step);
  }
  kv::Stats GetStats() const override { return counters_.Stats(); }
  std::span<const kv::HeadCounters> Heads() const override { return counters_.heads(); }

 private:
  kv::Cache& own() const { return const_cast<LeadingCache*>(this)->inner(); }
  void SendCalls() const;

  parallel::ProcessGroup& group_;
  mutable RankCounters counters_;
  mutable Words calls_;              // since the last message
  Words step_;                       // that begins next
  std::vector<uint64_t> part_ends_;  // of the ranks' parts of a block
};

class LeadingDecoder final : public model::Decoder {
 public:
  // Both must outlive this.
  LeadingDecoder(model::Decoder& own, LeadingCache& cache) : own_(own), cache_(cache) {}

  const model::ModelConfig& config() const override { return own_.config(); }
  DType kv_dtype() const override { return own_.kv_dtype(); }
  uint64_t weight_bytes() const override { return own_.weight_bytes(); }
  uint64_t weight_bytes_per_step(int64_t rows) const override {
    return own_.weight_bytes_per_step(rows);
  }
  uint64_t WorkspaceBytes(int64_t rows, int64_t logit_rows) const override {
    return own_.WorkspaceBytes(rows, logit_rows);
  }
  // Throws Error if a rank has ended. cache: the leading one.
  void Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
               std::span<const int32_t> positions, kv::Cache& cache,
               std::span<const int64_t> logit_rows, const MatrixView& logits) override;

 private:
  model::Decoder& own_;
  LeadingCache& cache_;
};

}  // namespace litecache::engine
