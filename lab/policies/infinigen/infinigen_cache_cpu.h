// Policy infinigen: rows on the host; the rows that a layer will attend are selected and fetched
// while the previous layer computes (Lee et al., OSDI 2024).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "kv/pages/step_pages.h"
#include "kv/retrieve/recall_meter.h"
#include "kv/step/attended_rows_cpu.h"
#include "kv/step/step_check.h"
#include "kv/with_shape.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/common/row_mover.h"
#include "lab/policies/common/store_prefill_cpu.h"
#include "lab/policies/infinigen/diagnosis.h"
#include "lab/policies/infinigen/shape.h"
#include "lab/policies/infinigen/speculation.h"
#include "litecache/kv_options.h"
#include "ops/rows/move_rows.h"

namespace litecache::lab::infinigen {

class InfiniGenCache final : public WithShape<Cache, Shape>, public Diagnosis {
 public:
  InfiniGenCache(Device& device, const Shape& shape, const KvOptions& options,
                 const Profile* profile, const TierBytes& budget);
  ~InfiniGenCache() override;

  std::string_view policy() const override { return "infinigen"; }

  void AllocateAhead(const TierBytes& bytes) override {
    device_.AllocateAhead(bytes.device);
    host_.AllocateAhead(bytes.host);
  }
  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return store_.Length(id); }

  void BeginStep(const Step& step) override;
  int64_t PredictionSource(int64_t layer) const override {
    return layer >= shape_.dense_layers ? layer - 1 : -1;
  }
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return heads_; }

  // For measurements: replaces the selected rows by the same number of others. Null: none.
  void Force(std::shared_ptr<const ForcedSelection> selection) { forced_ = std::move(selection); }

  std::vector<int32_t> Fetched(int64_t layer, int64_t sequence, int64_t head) const override;
  std::vector<int32_t> ChosenChannels(SequenceId id, int64_t layer, int64_t head) const override;

 private:
  struct State {
    SequenceId partial = 0;  // its id in the table of partial keys
    Channels channels;
  };
  // The rows attended by the layers of one parity: `count` slots of [decode sequences][kv_heads]
  // hold the rows of `positions`, and one slot after them the new token's.
  struct Buffer {
    int64_t layer = -1;
    std::shared_ptr<TaskGroup> arrived = std::make_shared<TaskGroup>();
    std::vector<ops::MoveWork> moves;
    std::vector<int32_t> positions, slots;
    std::vector<int64_t> firsts, counts;  // [decode sequences * kv_heads], in positions
  };

  size_t Item(size_t sequence, int64_t head) const {
    return sequence * static_cast<size_t>(shape_.layout.kv_heads) + static_cast<size_t>(head);
  }
  Buffer& BufferOf(int64_t layer) { return buffers_[static_cast<size_t>(layer % Shape::kBuffers)]; }
  HeadCounters& Head(int64_t layer, int64_t head) {
    return heads_[static_cast<size_t>(layer * shape_.layout.kv_heads + head)];
  }
  const float* Query(const MatrixView& q, const StepSequence& sequence, int64_t head) const {
    return q.Row<float>(sequence.first_row) + head * shape_.group * shape_.layout.head_dim;
  }
  ops::PagedRows Stored(SequenceId id, int64_t layer, int64_t head) const {
    return {store_.Lists(id)[layer * shape_.layout.kv_heads + head], shape_.pages.page_tokens,
            shape_.format};
  }
  ops::SlotRows Staged(int64_t layer, size_t sequence, int64_t head) const;

  // Waits until all transfers have ended: a failed step may have left some running.
  void Settle();
  // Starts the transfer of the rows in buffer->positions.
  void Fetch(int64_t layer, Traffic* traffic);
  void FetchAll(int64_t layer);
  void EncodeMissing(Stream& stream, int64_t layer);
  void Speculate(Stream& stream, int64_t layer, const MatrixView& q, float scale, bool predicted);
  void Append(int64_t layer, const MatrixView& k, const MatrixView& v);
  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void MeasureHeld(Stream& stream, int64_t layer, const MatrixView& q, float scale);

  PagePool device_, host_;
  SequenceTable store_;    // [layers][kv_heads]
  SequenceTable partial_;  // [sparse layers][kv_heads]; lengths: encoded tokens
  StepPages staging_;
  Speculation speculation_;
  StorePrefill prefill_;
  std::optional<RecallMeter> recall_;
  std::unordered_map<SequenceId, State> states_;
  Stats stats_;
  std::vector<HeadCounters> heads_;  // [layers][kv_heads]
  StepCheck check_;
  std::shared_ptr<const ForcedSelection> forced_;

  // State of the step in progress.
  bool in_step_ = false;
  std::vector<StepSequence> decoding_, prefilling_;
  std::vector<double> pending_sums_;     // [prefilling][sparse layers][kv_heads][width]
  std::vector<int64_t> staging_begins_;  // [decoding][buffers]: first page of a sequence
  std::array<Buffer, Shape::kBuffers> buffers_;
  // Scratch.
  std::vector<SequenceTable::Growth> store_growth_, partial_growth_;
  std::vector<Speculated> speculated_;
  std::vector<float> row_;
  std::vector<int32_t> forced_rows_;
  AttendedRows attended_;

  RowMover mover_;  // last: its thread must end before what it reads is destroyed
};

}  // namespace litecache::lab::infinigen
