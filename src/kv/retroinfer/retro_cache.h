// Policy retroinfer: an index of clusters over rows in a host store, a cache of their blocks on the
// device (RetroInfer's wave index and wave buffer).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/background_threads.h"
#include "kv/cache.h"
#include "kv/page_pool.h"
#include "kv/retroinfer/shape.h"
#include "kv/retroinfer/wave_buffer.h"
#include "kv/retroinfer/wave_sequence.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "kv/trace/imposed_selection.h"
#include "ops/attention.h"
#include "ops/row_attention.h"

namespace litecache::kv {

// What a decode step chose for one (sequence, layer, KV head), for tests.
struct RetroChoice {
  std::vector<int32_t> retrieved;  // clusters attended exactly, the best first
  std::vector<int32_t> estimated;
  std::vector<int32_t> hits;  // of the retrieved ones: were cached
};

class RetroCache final : public Cache {
 public:
  RetroCache(Device& device, const RetroShape& shape, const TierBytes& budget);
  ~RetroCache() override;

  std::string_view policy() const override { return "retroinfer"; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  // Waits for the parent's index; throws CapacityError where its prompt had none yet and there is
  // no room for it.
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return tokens_.Length(id); }

  void BeginStep(const Step& step) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return heads_; }

  // Of measurements: which clusters are attended, as many as were. Null: none.
  void Impose(std::shared_ptr<const ImposedSelection> selection) {
    imposed_ = std::move(selection);
  }

  // ---- for diagnosis ----
  // Sizes of a sequence's index as of its last decode step.
  struct IndexInfo {
    int64_t indexed_end, clusters, nprobe, estimated;
  };
  IndexInfo Index(SequenceId id) const;
  // A cluster's centroid and sum of values, and its tokens' rows, as f32 [K | V]. Waits for the
  // index.
  std::vector<float> Cluster(SequenceId id, int64_t layer, int64_t head, int64_t cluster);
  std::vector<std::vector<float>> ClusterRows(SequenceId id, int64_t layer, int64_t head,
                                              int64_t cluster);
  // Cached clusters, the most recently used first, and the rows that are cached of one.
  std::vector<int32_t> Cached(SequenceId id, int64_t layer, int64_t head);
  std::vector<std::vector<float>> CachedRows(SequenceId id, int64_t layer, int64_t head,
                                             int64_t cluster);
  // Where not null: Attend() notes what it chose.
  using Choices = std::map<std::tuple<SequenceId, int64_t, int64_t>, RetroChoice>;
  void set_choices(Choices* choices) { choices_ = choices; }

 private:
  // A sequence's part of the step in progress.
  struct View {
    StepSequence part;
    WaveSequence* sequence;
    int64_t n() const { return part.past + part.rows; }
  };
  // What a step takes for one sequence.
  struct Needs {
    bool adopt = false;                         // pending clusters are used from this step on
    std::vector<WavePart> parts;                // to be clustered
    int64_t cluster_room = 0;                   // 0: no pages of the index are asked for
    int64_t steady = 0, cache = 0, buffer = 0;  // pages a list
  };

  WaveSequence& Get(SequenceId id) { return *sequences_.at(id); }
  // Parts of a prompt's rows to cluster, all of them in the store, once there are n tokens.
  std::vector<WavePart> PromptParts(const WaveSequence& sequence, int64_t clustered_end,
                                    int64_t clusters, int64_t n) const;
  Needs Plan(const StepSequence& part) const;
  // Reserves what is needed; throws CapacityError, having changed nothing.
  void Reserve(const Step& step);
  void Take(const StepSequence& part, const Needs& needs);
  // A build of a step that was never committed.
  void DropBuild(WaveSequence* sequence);
  // Begins to cluster `parts`; store: their rows are committed. Start() is called for all layers.
  void StartBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts,
                  bool from_ring);
  void PrepareBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts);
  void Adopt(WaveSequence* sequence);
  std::vector<WaveList> Lists(SequenceId id, const WaveSequence& sequence, int64_t layer,
                              bool from_ring) const;

  ops::PagedRows StoreRows(SequenceId id, int64_t list) const {
    return {store_.Lists(id)[list], shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedRows SteadyRows(const WaveSequence& sequence, int64_t list) const {
    return {sequence.steady.Pages(list).data(), shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedClusters Clusters(SequenceId id, int64_t list) const {
    return {index_.Lists(id)[list], shape_.page_clusters, shape_.format};
  }

  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, float scale, const MatrixView& out);
  void Fill(Stream& stream, int64_t layer);
  void Append(int64_t layer, const MatrixView& k, const MatrixView& v);
  // The clusters that the layer's queries want, into selects_.
  void Select(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void ImposeClusters(int64_t layer);
  void CountAccesses(int64_t layer, std::span<const WaveAccess> accesses);
  void AttendZones(Stream& stream, int64_t layer, std::span<const WaveAccess> accesses,
                   const MatrixView& q, float scale, const MatrixView& out);
  void Prefill(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
               const MatrixView& v, float scale, const MatrixView& out);
  void Spill(Stream& stream, int64_t layer);

  const RetroShape shape_;
  PagePool device_, host_;
  SequenceTable tokens_;  // lengths only
  SequenceTable store_;   // all of a prompt, and of what was generated what is clustered
  SequenceTable index_;   // clusters, those to come among them
  std::unordered_map<SequenceId, std::unique_ptr<WaveSequence>> sequences_;
  BackgroundThreads index_threads_;
  WaveBuffer buffer_;
  Stats stats_;
  std::vector<HeadCounters> heads_;
  Choices* choices_ = nullptr;
  std::shared_ptr<const ImposedSelection> imposed_;

  // Of the step in progress.
  std::vector<View> decoding_, prefilling_;
  std::vector<Needs> needs_;
  StepCheck check_;

  // Scratch; kept, so that a step allocates little once it has grown.
  std::vector<SequenceTable::Growth> token_growth_, store_growth_, index_growth_;
  std::vector<PageId> shared_;
  std::vector<ops::MoveWork> moves_;
  std::vector<int32_t> indices_;
  std::vector<float> row_;
  std::vector<ops::ClusterSelectWork> selects_;
  std::vector<size_t> select_views_;
  std::vector<float> logits_, scores_, states_;
  std::vector<int32_t> ids_;
  std::vector<ops::ClusterEstimateWork> estimates_;
  std::vector<ops::RowPart> parts_;
  std::vector<size_t> part_begins_;
  std::vector<ops::RowAttentionHead> attends_;
  std::vector<std::byte* const*> lists_;
  std::vector<ops::KvSequence> views_;
};

}  // namespace litecache::kv
