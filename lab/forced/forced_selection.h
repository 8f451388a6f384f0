// What a trace's model wanted, in the place of what a policy's own rules find in random rows: for
// the systems that select at every step (infinigen, pqcache, retroinfer), so that their caches see
// the locality of a real text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lab/trace/replay.h"

namespace litecache::kv {

class ForcedSelection {
 public:
  // share: of the context that the policy selects. Sets recorded with another budget are thinned by
  // their positions, the same way at every step, or extended by the positions behind their own.
  ForcedSelection(std::shared_ptr<const Trace> trace, const Layout& layout, double share);

  // `count` positions of [begin, end), ascending, count <= end - begin, of a head of the sequence
  // in row `row` of a step, at `past` tokens: as many of the trace's as fit, the rest spread over
  // the others. Not for two threads at a time.
  void Rows(int64_t layer, int64_t kv_head, int64_t past, int64_t row, int64_t begin, int64_t end,
            int64_t count, int32_t* positions) const;

  // The first `count` of `clusters` clusters, the best first. A recorded cluster stands for as many
  // neighbours as there are more here.
  void Clusters(int64_t layer, int64_t kv_head, int64_t past, int64_t row, int64_t clusters,
                int64_t count, int32_t* ids) const;
  bool has_clusters() const { return trace_->clusters > 0; }

  // ---- for kernels: the same tables, to be put on a device ----
  // Bits of the trace's rows, [period() steps][layers][kv_heads][words()] of this shape's heads, as
  // lab/forced/force_rows.h has them.
  int64_t words() const { return words_; }
  int64_t period() const { return map_.period(); }
  std::vector<uint32_t> Bits() const;
  // Recorded clusters in order, those not ranked behind (lab/forced/force_clusters.h):
  // [period()][layers][kv_heads][clusters].
  std::vector<uint16_t> ClusterOrder() const;
  int64_t recorded_clusters() const { return trace_->clusters; }

 private:
  int64_t StepAt(int64_t layer, int64_t kv_head, int64_t past, int64_t row) const;
  const uint32_t* BitsOf(int64_t layer, int64_t kv_head, int64_t step) const;

  std::shared_ptr<const Trace> trace_;
  TraceMap map_;
  int64_t layers_, kv_heads_;
  int64_t words_;
  std::vector<uint32_t> bits_;  // [trace layers][trace KV heads][steps][words]
  mutable std::vector<int32_t> wanted_;
};

}  // namespace litecache::kv
