// The state of policy retroinfer on either device: sequences, their tables and pages, and the
// lifetime of an index. The derived class attends rows, makes clusters and transfers blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "kv/step/step_check.h"
#include "kv/with_shape.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"

namespace litecache::lab {

// The selection of a decode step for one (sequence, layer, KV head), for tests.
struct RetroChoice {
  std::vector<int32_t> retrieved;  // clusters attended exactly, the best first
  std::vector<int32_t> estimated;
  std::vector<int32_t> hits;  // retrieved clusters that were cached
};

class WaveCache : public WithShape<Cache, RetroShape> {
 public:
  std::string_view policy() const override { return "retroinfer"; }

  void AllocateAhead(const TierBytes& bytes) override {
    device_.AllocateAhead(bytes.device);
    host_.AllocateAhead(bytes.host);
  }
  SequenceId Create() override;
  // Waits for the parent's index; throws CapacityError if its prompt has no index so far and there
  // is no memory for it.
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return tokens_.Length(id); }

  void BeginStep(const Step& step) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return heads_; }

  // ---- for diagnosis ----
  // Sizes of a sequence's index in its last decode step.
  struct IndexInfo {
    int64_t indexed_end, clusters, nprobe, estimated;
  };
  IndexInfo Index(SequenceId id) const;
  // A cluster's centroid and sum of values, and its tokens' rows, as f32 [K | V]. Waits for the
  // index.
  std::vector<float> Cluster(SequenceId id, int64_t layer, int64_t head, int64_t cluster);
  std::vector<std::vector<float>> ClusterRows(SequenceId id, int64_t layer, int64_t head,
                                              int64_t cluster);
  // Cached clusters, the most recently used first, and the cached rows of each.
  std::vector<int32_t> Cached(SequenceId id, int64_t layer, int64_t head);
  std::map<int32_t, std::vector<std::vector<float>>> CachedRows(SequenceId id, int64_t layer,
                                                                int64_t head);
  // Returns when no work on the block caches is running: they reflect all layers attended so far.
  virtual void Settle() = 0;
  // If not null, Attend() records its selections here until the next Settle().
  using Choices = std::map<std::tuple<SequenceId, int64_t, int64_t>, RetroChoice>;
  void set_choices(Choices* choices) { choices_ = choices; }

 protected:
  // device: allocates the pages of the device tier and the data copied into them; host: allocates
  // the store's pages, which the processor reads.
  WaveCache(Device& device, Device& host, const RetroShape& shape, const TierBytes& budget,
            uint64_t host_slab_bytes = PagePool::kSlabBytes);

  // A sequence in the step in progress.
  struct View {
    StepSequence part;
    WaveSequence* sequence;
    int64_t n() const { return part.past + part.rows; }
  };
  // The memory that a step needs for one sequence.
  struct Needs {
    bool adopt = false;                         // pending clusters are used from this step on
    std::vector<WavePart> parts;                // to be clustered
    int64_t cluster_room = 0;                   // 0: no pages of the index are needed
    int64_t steady = 0, cache = 0, buffer = 0;  // pages per list
  };

  // parent: null, or the parent of a fork.
  virtual std::unique_ptr<WaveSequence> NewSequence(const WaveSequence* parent);
  // Makes a build of a sequence's next clusters without starting it: its rows may not exist so far.
  virtual std::unique_ptr<WaveBuild> NewBuild(SequenceId id, WaveSequence* sequence,
                                              std::vector<WavePart> parts) = 0;
  // Starts the sequence's new build; all its rows are committed, in the store or the ring.
  virtual void RunBuild(SequenceId id, WaveSequence* sequence, bool from_ring) = 0;
  // Pages that TakeStaging() will take in addition to the sequence's own.
  virtual int64_t MissingStaging(const StepSequence&) const { return 0; }
  virtual void TakeStaging(const StepSequence&) {}

  WaveSequence& Get(SequenceId id) { return *sequences_.at(id); }
  // Parts of a prompt's rows to cluster when there are n tokens, all of them in the store.
  std::vector<WavePart> PromptParts(const WaveSequence& sequence, int64_t clustered_end,
                                    int64_t clusters, int64_t n) const;
  Needs Plan(const StepSequence& part) const;
  // Reserves the step's memory; throws CapacityError without changing anything.
  void Reserve(const Step& step);
  void Take(const StepSequence& part, const Needs& needs);
  // Drops a build of a step that was never committed.
  void DropBuild(WaveSequence* sequence);
  // Starts clustering `parts`; store: their rows are committed. Calls Start() for all layers.
  void StartBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts,
                  bool from_ring);
  void PrepareBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts);
  void Adopt(WaveSequence* sequence);
  std::vector<float> StoredRow(const std::byte* row) const;
  std::vector<float> DeviceRow(const std::byte* row) const;

  ops::PagedRows StoreRows(SequenceId id, int64_t list) const {
    return {store_.Lists(id)[list], shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedRows SteadyRows(const WaveSequence& sequence, int64_t list) const {
    return {sequence.steady.Pages(list).data(), shape_.pages.page_tokens, shape_.format};
  }
  ops::PagedClusters Clusters(SequenceId id, int64_t list) const {
    return {index_.Lists(id)[list], shape_.page_clusters, shape_.format};
  }

  Device& memory_;
  PagePool device_, host_;
  SequenceTable tokens_;  // lengths only
  SequenceTable store_;   // all rows of prompts, and the clustered generated ones
  SequenceTable index_;   // clusters, including pending ones
  std::unordered_map<SequenceId, std::unique_ptr<WaveSequence>> sequences_;
  Stats stats_;
  std::vector<HeadCounters> heads_;
  Choices* choices_ = nullptr;

  // State of the step in progress.
  std::vector<View> decoding_, prefilling_;
  std::vector<Needs> needs_;
  StepCheck check_;

 private:
  std::vector<SequenceTable::Growth> token_growth_, store_growth_, index_growth_;
  std::vector<PageId> shared_;
};

}  // namespace litecache::lab
