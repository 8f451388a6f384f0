// The rows that a trace's model needed, replacing those that a policy finds in random rows: for the
// systems that select at every step (infinigen, pqcache, retroinfer), so that their caches have the
// locality of a real text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lab/namespaces.h"
#include "lab/trace/replay.h"

namespace litecache::lab {

class ForcedSelection {
 public:
  // share: of the context that the policy selects. Sets recorded with another budget are thinned
  // out by position, in the same way at every step, or extended by the positions after their own.
  ForcedSelection(std::shared_ptr<const Trace> trace, const Layout& layout, double share);

  // `count` positions of [begin, end), ascending, count <= end - begin, of a head of the sequence
  // in row `row` of a step, at `past` tokens: the trace's positions as far as they fit, the rest
  // spread over the others. Not thread-safe.
  void Rows(int64_t layer, int64_t kv_head, int64_t past, int64_t row, int64_t begin, int64_t end,
            int64_t count, int32_t* positions) const;

  // The first `count` of `clusters` clusters, the best first. A recorded cluster represents as many
  // neighbouring clusters as the ratio of the two numbers.
  void Clusters(int64_t layer, int64_t kv_head, int64_t past, int64_t row, int64_t clusters,
                int64_t count, int32_t* ids) const;
  bool has_clusters() const { return trace_->clusters > 0; }

  // ---- for kernels: the same tables, to be copied to a device ----
  // Bits of the trace's rows, [period() steps][layers][kv_heads][words()] of this shape's heads, in
  // the format of lab/forced/force_rows.h.
  int64_t words() const { return words_; }
  int64_t period() const { return map_.period(); }
  std::vector<uint32_t> Bits() const;
  // Recorded clusters in order, without the unranked ones (lab/forced/force_clusters.h):
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

}  // namespace litecache::lab
