// The decode sequences of a step, layer by layer: spill, decide, refresh (Prepare), check what a
// predicted query decided (Verify), then append and attend (Attend).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "kv/litecache/counters_cpu.h"
#include "kv/litecache/refresh_cpu.h"
#include "kv/litecache/result_override.h"
#include "kv/litecache/spill_cpu.h"
#include "kv/litecache/tiers.h"
#include "kv/retrieve/recall_meter.h"
#include "kv/step/attended_rows_cpu.h"
#include "ops/reuse/qsac_lookup.h"

namespace litecache::kv {

class DecodePath {
 public:
  // recall and results may be null.
  DecodePath(Tiers& tiers, Retriever& retriever, Spiller& spiller, RecallMeter* recall,
             Counters& counters, const KvOptions& options,
             std::shared_ptr<const ResultOverride> results);

  void BeginStep(const Step& step) { whole_ = tiers_.shape.AttendsWhole(step); }
  // A layer's lookups, and the transfer of the rows they select. q [at least the step's rows,
  // q_heads * head_dim]: the layer's query, predicted or actual. May be repeated.
  void Prepare(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
               const MatrixView& q, float scale, bool predicted);
  // After Prepare() with a predicted query: looks up again with the actual one, q, and refreshes
  // the heads that miss.
  void Verify(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
              const MatrixView& q, float scale);
  // As Cache::Attend, for these sequences' rows. Call after Prepare() of the layer.
  void Attend(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
              const MatrixView& q, const MatrixView& k, const MatrixView& v,
              const ops::Softmax& softmax, const MatrixView& out);

 private:
  // Fills the slots of sequences that decode for the first time since their prompt: sink and recent
  // rows, and the top-k of the prompt's last query (step 0 of LiteCache section 4).
  void Fill(Stream& stream, int64_t layer, std::span<const SequenceView> sequences, float scale);
  // For heads whose candidates all fit: the row that left the recent window stays on the device.
  void KeepAll(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
               const MatrixView& q);
  enum class Lookups : uint8_t { kActual, kPredicted, kVerifying };
  void Decide(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
              const MatrixView& q, float scale, Lookups lookups);
  void Append(int64_t layer, std::span<const SequenceView> sequences, const MatrixView& k,
              const MatrixView& v);
  // Selects the top-k of resident heads into selects_.
  void SelectResident(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                      const MatrixView& q, float scale);
  void MeasureHeld(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                   const MatrixView& q, float scale);

  // Calls body(sequence, head, list) for a layer's offloaded heads.
  template <class Body>
  void ForEachOffloaded(int64_t layer, std::span<const SequenceView> sequences, const Body& body);
  HeadCounters& Head(int64_t layer, int64_t head) {
    return counters_.heads[static_cast<size_t>(tiers_.shape.Index(layer, head))];
  }
  const float* Query(const MatrixView& q, const SequenceView& sequence, int64_t head) const {
    return q.Row<float>(sequence.row) + head * tiers_.shape.group * tiers_.shape.layout.head_dim;
  }

  Tiers& tiers_;
  Retriever& retriever_;
  Spiller& spiller_;
  RecallMeter* recall_;
  Counters& counters_;
  ops::Aggregation aggregation_;
  float prediction_tau_, prediction_margin_;  // KvOptions::prediction_eta, prediction_margin
  Refresher refresher_;
  std::shared_ptr<const ResultOverride> results_;

  bool whole_ = false;  // Shape::AttendsWhole() of the step

  // Scratch, members so that its memory is reused by every step.
  std::vector<SpillWork> spills_;
  std::vector<RefreshWork> refreshes_;
  std::vector<ops::LookupWork> lookups_;
  std::vector<ops::MoveWork> moves_;
  std::vector<int32_t> indices_;
  std::vector<float> row_;
  std::vector<SelectWork> selects_;
  std::vector<int32_t> selected_;
  AttendedRows attended_;
};

}  // namespace litecache::kv
