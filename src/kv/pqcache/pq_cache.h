// Policy pqcache: rows on the host, the top rows by product-quantized keys, a block cache on the
// device (Zhang et al., SIGMOD 2025).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/background_threads.h"
#include "kv/cache.h"
#include "kv/page_pool.h"
#include "kv/pqcache/index.h"
#include "kv/pqcache/lfu.h"
#include "kv/pqcache/shape.h"
#include "kv/recall_meter.h"
#include "kv/row_mover.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "kv/step_pages.h"
#include "kv/store_prefill.h"
#include "kv/trace/imposed_selection.h"
#include "litecache/kv_options.h"
#include "ops/move_rows.h"
#include "ops/row_attention.h"

namespace litecache::kv::pqcache {

class PqCache final : public Cache {
 public:
  PqCache(Device& device, const Shape& shape, const KvOptions& options, const TierBytes& budget);
  ~PqCache() override;

  std::string_view policy() const override { return "pqcache"; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return store_.Length(id); }

  void BeginStep(const Step& step) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return heads_; }

  // Of measurements: which rows are selected, as many as were. Null: none.
  void Impose(std::shared_ptr<const ImposedSelection> selection) {
    imposed_ = std::move(selection);
  }

  // For diagnosis, right after Attend() of a layer.
  struct Selected {
    std::vector<int32_t> hits, misses;  // ascending positions
  };
  Selected SelectedRows(int64_t sequence, int64_t head) const;  // i-th decode sequence's
  // Of an indexed sequence: its budget of rows, centroids, and the code of a token's part.
  int64_t RowBudget(SequenceId id) const { return states_.at(id).rows; }
  bool indexed(SequenceId id) const { return states_.at(id).index != nullptr; }
  const float* Centroids(SequenceId id, int64_t layer, int64_t head) const;
  int CodeOf(SequenceId id, int64_t layer, int64_t head, int64_t token, int64_t part) const;
  // The cache's slot of a block, -1 where it has none.
  int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) const {
    return states_.at(id).layers[static_cast<size_t>(layer)].blocks.SlotOf(block);
  }

 private:
  struct LayerState {
    bool filled = false;  // window and codes hold what belongs there
    Lfu blocks;
    int64_t counted_at = -1;  // the past of the step that was last counted: once, however often run
    // Blocks on their way into the cache.
    std::shared_ptr<TaskGroup> arrived = std::make_shared<TaskGroup>();
    std::vector<ops::MoveWork> moves;
    std::vector<std::vector<std::byte*>> pages;  // of the moves: a table's lists move as it grows
    std::vector<int32_t> positions, slots;
  };
  struct State {
    bool shared = false;  // has been forked, or is a fork
    // From the first token after a prompt on:
    bool ready = false;
    int64_t rows = 0;                             // recent rows, and top rows
    std::shared_ptr<Index> index;                 // null: every row is attended
    SequenceId codes = 0, window = 0, cache = 0;  // ids in these tables
    std::vector<PageId> codebook_ids;
    std::vector<std::byte*> codebooks;
    std::vector<LayerState> layers;
  };
  // What a (decode sequence, KV head) attends beside its window in the layer at hand.
  struct Choice {
    std::vector<int32_t> positions;  // of a selection, ascending
    std::vector<int32_t> hit_slots, hits, misses, staged;
  };

  State& StateOf(const StepSequence& sequence) { return states_.at(sequence.id); }
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
    return {table.Lists(id)[shape_.List(layer, head)], shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedMetadata CodesOf(const State& state, int64_t layer, int64_t head) const {
    return {codes_.Lists(state.codes)[shape_.List(layer, head)], shape_.code_tokens};
  }
  float* Codebook(const State& state, int64_t layer, int64_t head) const;
  ops::SlotRows Staged(size_t sequence, int64_t head) const;
  int64_t WindowSlot(const State& state, int64_t token) const {
    return token < shape_.sink ? token : shape_.sink + token % (state.rows + 1);
  }
  int64_t StagedRows(const State& state, int64_t n) const {
    return state.index != nullptr ? state.rows : n;
  }

  // `rows` with a list of its own, which *pages keeps.
  ops::PagedRows Kept(ops::PagedRows rows, int64_t blocks,
                      std::vector<std::vector<std::byte*>>* pages) const;
  // Ends what works for a sequence, and forgets what a prompt's end has to make again.
  void Settle(State* state);
  void Reset(State* state);
  // What the sequence's next token needs that does not depend on memory: budget and index.
  void Prepare(const StepSequence& sequence, State* state);
  void StartLayer(const StepSequence& sequence, int64_t tokens, int64_t layer, double seconds,
                  Index* index);
  void Fill(Stream& stream, int64_t layer, const StepSequence& sequence, State* state);
  void Select(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void ImposeRows(int64_t layer);
  void Gather(Stream& stream, int64_t layer);
  void Append(Stream& stream, int64_t layer, const MatrixView& k, const MatrixView& v);
  void Update(int64_t layer, size_t sequence);
  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, float scale, const MatrixView& out);
  void MeasureRecall(Stream& stream, int64_t layer, const MatrixView& q, float scale);

  const Shape shape_;
  const int64_t iterations_;
  PagePool device_, host_;
  SequenceTable store_;   // [layers][kv_heads], as all of them
  SequenceTable codes_;   // lengths: tokens that are encoded
  SequenceTable window_;  // rows: Shape::WindowSlots()
  SequenceTable cache_;   // rows: slots of the cached blocks
  StepPages staging_;
  StorePrefill prefill_;
  std::optional<RecallMeter> recall_;
  std::unordered_map<SequenceId, State> states_;
  Stats stats_;
  std::vector<HeadCounters> heads_;  // [layers][kv_heads]
  StepCheck check_;
  std::shared_ptr<const ImposedSelection> imposed_;

  // Of the step in progress.
  bool in_step_ = false;
  std::vector<StepSequence> decoding_, prefilling_;
  std::vector<std::shared_ptr<Index>> growing_;  // [prefilling]: indices of prompts that end
  std::vector<int64_t> staging_begins_;          // [decoding]: first page of a sequence
  std::vector<Choice> choices_;                  // [decoding][kv_heads]
  std::optional<std::chrono::steady_clock::time_point> layer_start_;
  double layer_seconds_ = 0;  // of the last layer of a prompt's chunk
  // Scratch.
  std::vector<SequenceTable::Growth> store_growth_, codes_growth_, window_growth_, cache_growth_;
  std::vector<int32_t> indices_;
  std::vector<ops::MoveWork> moves_;
  std::vector<ops::PqEncodeWork> encodes_;
  std::vector<ops::PqSelectWork> selects_;
  std::vector<float> keys_;
  std::vector<ops::RowPart> parts_;
  std::vector<ops::RowAttentionHead> attends_;

  BackgroundThreads clustering_;
  RowMover mover_;
};

}  // namespace litecache::kv::pqcache
