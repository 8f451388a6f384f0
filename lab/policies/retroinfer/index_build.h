// The work behind a wave index: runs of a sequence's tokens become clusters, list by list, on
// threads beside the caller's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/background_threads.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// Where one list's rows come from and go to. Pages are named one by one: a table may move its own
// lists while a build runs.
struct WaveList {
  std::vector<std::byte*> store;  // pages of the host store; rows of a part end in cluster order
  std::vector<std::byte*> ring;   // pages of the steady zone where the rows come from, or empty
                                  // where they are in the store, in the order of their tokens
  std::vector<std::byte*> index;  // pages of clusters
  int32_t* begins = nullptr;      // of every cluster: its first row in the store
};

// Two halves: clustering reads rows and writes centroids and sizes; storing brings the rows into
// the order of their clusters and writes the sums of the values. Storing may have to wait until the
// step that wrote the rows is committed.
class IndexBuild final : public WaveBuild {
 public:
  IndexBuild(const RetroShape& shape, BackgroundThreads& threads, std::vector<WavePart> parts);
  ~IndexBuild() override { Cancel(); }

  // Once a layer: its lists' rows are there. lists: [kv_heads].
  void Start(int64_t layer, std::vector<WaveList> lists);
  // Rows of started layers may be stored from now on, once each layer was started.
  void Store() override;
  bool storing() const override { return storing_; }

  // Returns when a layer, or all, are clustered and stored; rethrows what a job ended with.
  void Wait(int64_t layer);
  void WaitAll() override;
  // Stops as soon as it can; what was written is void.
  void Cancel();

 private:
  struct List {
    WaveList where;
    std::vector<std::vector<int32_t>> assignments;  // of the parts' tokens
    std::atomic<int> ready{0};                      // of two: clustered, and allowed to be stored
  };
  ops::PagedRows StoreRows(const List& list) const {
    return {list.where.store.data(), shape_.pages.page_tokens, shape_.format};
  }
  // Bytes of the row of a token before it is stored.
  const std::byte* Source(const List& list, int64_t token) const;
  void Cluster(List* list);
  void StorePart(List* list);
  void Ready(List* list, int64_t layer, bool here);

  const RetroShape& shape_;
  BackgroundThreads& threads_;
  std::vector<List> lists_;                         // [layers * kv_heads]
  std::vector<std::shared_ptr<TaskGroup>> groups_;  // [layers]
  std::vector<bool> started_;
  std::exception_ptr error_;  // of a job; every Wait() tells it
  std::atomic<bool> cancel_{false};
  bool storing_ = false;
};

}  // namespace litecache::kv
