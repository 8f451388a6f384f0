// Policy litecache: query-similarity approximate caching over two tiers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kv/litecache/cache_base.h"
#include "kv/litecache/counters_cpu.h"
#include "kv/litecache/decode_cpu.h"
#include "kv/litecache/prefill_cpu.h"
#include "kv/litecache/result_override.h"
#include "kv/litecache/spill_cpu.h"
#include "kv/retrieve/recall_meter.h"

namespace litecache::kv {

class LiteCache final : public LiteCacheBase {
 public:
  LiteCache(Device& device, const Shape& shape, const HeadPlan& plan, const KvOptions& options,
            std::unique_ptr<Retriever> retriever, const TierBytes& budget,
            std::shared_ptr<const ResultOverride> results, const ops::SparsePrefill& sparse);

  bool CanTruncate() const override { return true; }
  // A head keeps its cached rows and its label, also if a rejected query has selected them, unless
  // some of the rows could not have been selected at that length.
  void Truncate(SequenceId id, int64_t tokens) override;
  void BeginStep(const Step& step) override;
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return counters_.heads; }

  // For diagnosis, for an offloaded head: the positions of its cached rows after the last decode
  // step, ascending, without sink and recent tokens; and the label [group][head_dim].
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head);
  std::span<const float> Label(SequenceId id, int64_t layer, int64_t head);

 private:
  // Before tokens from `tokens` on are taken back or stored by a drafted chunk: the ring's rows
  // have to be brought anew, and cached rows, too, where these do not depend on earlier tokens
  // only.
  void KeepCachedRows(int64_t tokens, SequenceSlots* slots) const;

  Counters counters_;
  std::optional<RecallMeter> recall_;
  Spiller spiller_;
  DecodePath decode_;
  PrefillPath prefill_;
  const bool verify_;  // KvOptions::verify_predictions

  // Sequences of the current step.
  std::vector<SequenceView> decoding_, prefilling_;
  std::vector<uint8_t> prepared_;  // layers whose lookups have run with a predicted query
};

}  // namespace litecache::kv
