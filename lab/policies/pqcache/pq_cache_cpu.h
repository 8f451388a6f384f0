// Policy pqcache: rows on the host, top rows selected with product-quantized keys, and a block
// cache on the device (Zhang et al., SIGMOD 2025).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/background_threads.h"
#include "kv/cache.h"
#include "kv/pages/step_pages.h"
#include "kv/retrieve/recall_meter.h"
#include "kv/step/attended_rows_cpu.h"
#include "kv/step/step_check.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/common/row_mover.h"
#include "lab/policies/common/store_prefill_cpu.h"
#include "lab/policies/pqcache/diagnosis.h"
#include "lab/policies/pqcache/sequences.h"
#include "lab/policies/pqcache/shape.h"
#include "litecache/kv_options.h"
#include "ops/rows/move_rows.h"

namespace litecache::lab::pqcache {

class PqCache final : public WithShape<Cache, Shape>, public Diagnosis {
 public:
  PqCache(Device& device, const Shape& shape, const KvOptions& options, const TierBytes& budget);
  ~PqCache() override;

  std::string_view policy() const override { return "pqcache"; }

  void AllocateAhead(const TierBytes& bytes) override { sequences_.AllocateAhead(bytes); }
  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return sequences_.store().Length(id); }

  void BeginStep(const Step& step) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return heads_; }

  // For measurements: replaces the selected rows by the same number of others. Null: none.
  void Force(std::shared_ptr<const ForcedSelection> selection) { forced_ = std::move(selection); }

  // Diagnosis.
  Selected SelectedRows(int64_t sequence, int64_t head) override;
  int64_t RowBudget(SequenceId id) override { return sequences_.Get(id).rows; }
  bool indexed(SequenceId id) override { return sequences_.Get(id).index != nullptr; }
  std::vector<float> Centroids(SequenceId id, int64_t layer, int64_t head) override;
  std::vector<uint8_t> Codes(SequenceId id, int64_t layer, int64_t head, int64_t tokens) override;
  int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) override {
    return sequences_.Get(id).layers[static_cast<size_t>(layer)].blocks.SlotOf(block);
  }

 private:
  // Blocks of a layer that are being transferred into the cache.
  struct Admission {
    std::shared_ptr<TaskGroup> arrived = std::make_shared<TaskGroup>();
    std::vector<ops::MoveWork> moves;
    // Of the moves; copied, because a table's lists move as it grows.
    std::vector<std::vector<std::byte*>> pages;
    std::vector<int32_t> positions, slots;
  };
  // The rows that a (decode sequence, KV head) attends besides its window in the current layer.
  struct Choice {
    std::vector<int32_t> positions;  // of a selection, ascending
    std::vector<int32_t> hit_slots, hits, misses, staged;
  };

  Sequence& Get(const StepSequence& sequence) { return sequences_.Get(sequence.id); }
  Admission& AdmissionOf(SequenceId id, int64_t layer) {
    return admissions_.at(id)[static_cast<size_t>(layer)];
  }
  Choice& ChoiceOf(size_t sequence, int64_t head) {
    return choices_[sequence * static_cast<size_t>(shape_.layout.kv_heads) +
                    static_cast<size_t>(head)];
  }
  HeadCounters& Head(int64_t layer, int64_t head) {
    return heads_[static_cast<size_t>(layer * shape_.layout.kv_heads + head)];
  }
  const float* Query(const MatrixView& q, const StepSequence& sequence, int64_t head) const {
    return q.Row<float>(sequence.first_row) + head * shape_.group * shape_.layout.head_dim;
  }
  ops::PagedRows RowsOf(const SequenceTable& table, SequenceId id, int64_t layer,
                        int64_t head) const {
    return sequences_.RowsOf(table, id, layer, head);
  }
  ops::SlotRows Staged(size_t sequence, int64_t head) const;
  int64_t StagedRows(const Sequence& sequence, int64_t n) const {
    return sequence.index != nullptr ? sequence.rows : n;
  }

  // `rows` with a separate list, which *pages keeps.
  ops::PagedRows Kept(ops::PagedRows rows, int64_t blocks,
                      std::vector<std::vector<std::byte*>>* pages) const;
  void Fill(Stream& stream, int64_t layer, const StepSequence& step);
  void Select(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void ForceRows(int64_t layer);
  void Gather(Stream& stream, int64_t layer);
  void Append(Stream& stream, int64_t layer, const MatrixView& k, const MatrixView& v);
  void Update(int64_t layer, size_t sequence);
  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void MeasureRecall(Stream& stream, int64_t layer, const MatrixView& q, float scale);

  std::unordered_map<SequenceId, std::vector<Admission>> admissions_;  // [layers]
  Sequences sequences_;
  StepPages staging_;
  StorePrefill prefill_;
  std::optional<RecallMeter> recall_;
  Stats stats_;
  std::vector<HeadCounters> heads_;  // [layers][kv_heads]
  StepCheck check_;
  std::shared_ptr<const ForcedSelection> forced_;

  // State of the step in progress.
  bool in_step_ = false;
  std::vector<StepSequence> decoding_, prefilling_;
  std::vector<std::shared_ptr<Index>> growing_;  // [prefilling]: indices of ending prompts
  std::vector<int64_t> staging_begins_;          // [decoding]: first page of a sequence
  std::vector<Choice> choices_;                  // [decoding][kv_heads]
  std::optional<std::chrono::steady_clock::time_point> layer_start_;
  double layer_seconds_ = 0;  // time of the last layer of a prompt's chunk
  // Scratch.
  std::vector<int32_t> indices_;
  std::vector<ops::MoveWork> moves_;
  std::vector<ops::PqEncodeWork> encodes_;
  std::vector<ops::PqSelectWork> selects_;
  std::vector<float> keys_;
  AttendedRows attended_;

  RowMover mover_;
};

}  // namespace litecache::lab::pqcache
