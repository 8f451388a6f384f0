// Policy litecache: query-similarity approximate caching over two tiers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kv/cache.h"
#include "kv/litecache/counters.h"
#include "kv/litecache/decode.h"
#include "kv/litecache/growth.h"
#include "kv/litecache/prefill.h"
#include "kv/litecache/spill.h"
#include "kv/litecache/tiers.h"
#include "kv/retrieve/recall_meter.h"
#include "kv/row_store.h"
#include "kv/step_check.h"
#include "kv/trace/imposed_reuse.h"

namespace litecache::kv {

class LiteCache final : public Cache, public RowStore {
 public:
  // ahead: layers that rows are prefetched ahead of theirs; 0: not at all.
  LiteCache(Device& device, const Shape& shape, const HeadPlan& plan, const KvOptions& options,
            int64_t ahead, std::unique_ptr<Retriever> retriever, const TierBytes& budget,
            std::shared_ptr<const ImposedReuse> imposed = nullptr);

  std::string_view policy() const override { return "litecache"; }
  const Layout& layout() const override { return tiers_.shape.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return tiers_.shape.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return tiers_.shape.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return tiers_.resident.Length(id); }

  // Prefixes are what is stored: generated rows in the recent window, slots and labels stay with
  // their sequence.
  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(SequenceId id) const override { return tiers_.store.Length(id); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override;
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override;
  uint64_t BlockBytes() const override;
  void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const override;
  void ImportBlock(SequenceId id, std::span<const std::byte> bytes) override;

  void BeginStep(const Step& step) override;
  bool WantsPrediction(int64_t layer) const override;
  int64_t PredictsAhead() const override { return std::max<int64_t>(ahead_, 1); }
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return counters_.heads; }

  // For diagnosis, of an offloaded head: the positions of its cached rows (sink and recent tokens
  // not among them; as of the last decode step), ascending, and the label [group][head_dim].
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head);
  std::span<const float> Label(SequenceId id, int64_t layer, int64_t head);

 private:
  Tiers tiers_;
  TierGrowth growth_;
  std::unique_ptr<Retriever> retriever_;
  Counters counters_;
  std::optional<RecallMeter> recall_;
  Spiller spiller_;
  DecodePath decode_;
  PrefillPath prefill_;
  int64_t ahead_;

  // Of the step in progress.
  std::vector<SequenceView> decoding_, prefilling_;
  std::vector<uint8_t> prepared_;  // layers whose lookups a predicted query has done
  StepCheck check_;
};

}  // namespace litecache::kv
