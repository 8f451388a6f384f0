// The counters of all ranks' caches together: what one process with all heads would count.
#pragma once

#include <span>
#include <vector>

#include "kv/cache.h"
#include "model/config.h"
#include "parallel/process_group.h"

namespace litecache::engine {

// Writes this rank's counters where rank 0 reads them.
void PublishCounters(const parallel::ProcessGroup& group, const kv::Cache& cache);
// What a rank has written last; for any thread.
kv::Stats PublishedStats(const parallel::ProcessGroup& group, int rank);

// Rank 0's view. The others' counters may lack their last step.
class RankCounters {
 public:
  // part: rank 0's; `own` must outlive this.
  RankCounters(const parallel::ProcessGroup& group, const model::ModelConfig& part,
               const kv::Cache& own);

  // Traffic, lookups and hits of all ranks; memory, for which every rank plans the same, of one.
  // Publishes rank 0's.
  kv::Stats Stats();
  // [layers][all KV heads], as of the last Stats(); empty for policies without lookups. The address
  // never changes.
  std::span<const kv::HeadCounters> heads() const { return heads_; }

 private:
  const parallel::ProcessGroup& group_;
  const model::ModelConfig& part_;
  const kv::Cache& own_;
  std::vector<kv::HeadCounters> heads_;
};

}  // namespace litecache::engine
