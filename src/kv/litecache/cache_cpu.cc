#include "kv/litecache/cache_cpu.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/pages/pool_stats.h"

namespace litecache::kv {

LiteCache::LiteCache(Device& device, const Shape& shape, const HeadPlan& plan,
                     const KvOptions& options, std::unique_ptr<Retriever> retriever,
                     const TierBytes& budget, std::shared_ptr<const ResultOverride> results,
                     const ops::SparsePrefill& sparse)
    : LiteCacheBase(device, nullptr, shape, plan, std::move(retriever), budget),
      counters_{.stats = {},
                .heads = std::vector<HeadCounters>(
                    static_cast<size_t>(shape.layout.layers * shape.layout.kv_heads))},
      recall_(options.measure_recall
                  ? std::make_optional<RecallMeter>(shape.layout, options, shape.pages.page_bytes)
                  : std::nullopt),
      spiller_(tiers_, *retriever_),
      decode_(tiers_, *retriever_, spiller_, recall_ ? &*recall_ : nullptr, counters_, options,
              std::move(results)),
      prefill_(tiers_, *retriever_, spiller_, counters_, sparse),
      verify_(options.verify_predictions) {}

void LiteCache::KeepCachedRows(int64_t tokens, SequenceSlots* slots) const {
  using Filled = SequenceSlots::Filled;
  const Shape& shape = tiers_.shape;
  // Rows that all fit are cached in the order of their positions, which decode steps continue.
  bool keep = !shape.AllFit(tokens + 1);
  for (const HeadSlots& head : slots->heads) keep = keep && head.cached_end <= tokens;
  for (Filled& filled : slots->filled) {
    filled = std::min(filled, keep ? Filled::kCachedRows : Filled::kNothing);
  }
}

void LiteCache::Truncate(SequenceId id, int64_t tokens) {
  if (tokens == Length(id)) return;
  const bool lost = TruncateTables(id, tokens);
  SequenceSlots& slots = tiers_.slots.Get(id);
  if (lost) {
    std::ranges::fill(slots.filled, SequenceSlots::Filled::kNothing);
  } else {
    KeepCachedRows(tokens, &slots);
  }
}

void LiteCache::BeginStep(const Step& step) {
  check_(step, tiers_.resident);
  decode_.BeginStep(step);
  decoding_.clear();
  prefilling_.clear();
  growth_.Begin(step);
  for (const StepSequence& sequence : step.sequences) {
    SequenceSlots& slots = tiers_.slots.Get(sequence.id);
    if (sequence.drafted && !sequence.decode) {
      KeepCachedRows(sequence.past, &slots);
    } else if (!sequence.decode) {
      std::ranges::fill(slots.filled, SequenceSlots::Filled::kNothing);
    }
    (sequence.decode ? decoding_ : prefilling_)
        .push_back({.id = sequence.id,
                    .row = sequence.first_row,
                    .rows = sequence.rows,
                    .past = sequence.past,
                    .stored = tiers_.store.Length(sequence.id),
                    .encoded = tiers_.metadata.Length(sequence.id),
                    .ends_prompt = sequence.ends_prompt,
                    .drafted = sequence.drafted,
                    .slots = &slots,
                    .store = tiers_.store.Lists(sequence.id),
                    .resident = tiers_.resident.Lists(sequence.id),
                    .metadata = tiers_.metadata.Lists(sequence.id)});
  }
  prepared_.assign(static_cast<size_t>(tiers_.shape.layout.layers), 0);
}

void LiteCache::Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                         float scale) {
  LC_CHECK(layer >= 1 && layer < tiers_.shape.layout.layers && q.rows >= step.decode_rows);
  if (decoding_.empty() || !WantsPrediction(layer)) return;
  decode_.Prepare(stream, layer, decoding_, q, scale, /*predicted=*/true);
  prepared_[static_cast<size_t>(layer)] = 1;
}

void LiteCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                       const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                       const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  if (!decoding_.empty()) {
    if (!prepared_[static_cast<size_t>(layer)]) {
      decode_.Prepare(stream, layer, decoding_, q, softmax.scale, /*predicted=*/false);
    } else if (verify_) {
      decode_.Verify(stream, layer, decoding_, q, softmax.scale);
    }
    decode_.Attend(stream, layer, decoding_, q, k, v, softmax, out);
  }
  if (!prefilling_.empty()) {
    prefill_.Attend(stream, layer, prefilling_, growth_.staging(), q, k, v, softmax, &out);
  }
}

void LiteCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                          const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers);
  LC_CHECK(decoding_.empty() && prefilling_.size() == step.sequences.size(),
           "StoreRows() takes prompt chunks only, between BeginStep and EndStep");
  prefill_.Attend(stream, layer, prefilling_, growth_.staging(), q, k, v, /*softmax=*/1, nullptr);
}

void LiteCache::EndStep(const Step& step) {
  growth_.Commit(step);
  decoding_.clear();
  prefilling_.clear();
}

std::vector<int32_t> LiteCache::CachedPositions(SequenceId id, int64_t layer, int64_t head) {
  const int64_t list =
      tiers_.shape.offloaded_list[static_cast<size_t>(tiers_.shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  std::vector<int32_t> positions;
  AttendedPositions(tiers_.geometry, tiers_.slots.Get(id).heads[static_cast<size_t>(list)],
                    &positions);
  std::sort(positions.begin(), positions.end());
  return positions;
}

std::span<const float> LiteCache::Label(SequenceId id, int64_t layer, int64_t head) {
  const int64_t list =
      tiers_.shape.offloaded_list[static_cast<size_t>(tiers_.shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  return {tiers_.slots.Label(tiers_.slots.Get(id), list),
          static_cast<size_t>(tiers_.shape.group * tiers_.shape.layout.head_dim)};
}

Stats LiteCache::GetStats() const {
  Stats stats = counters_.stats;
  AddPools(tiers_.device, &tiers_.host, &stats);
  AddLookups(counters_.heads, &stats);
  return stats;
}

}  // namespace litecache::kv
