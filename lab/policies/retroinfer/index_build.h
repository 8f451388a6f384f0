// Builds a wave index: clusters runs of a sequence's tokens, list by list, on threads in parallel
// with the caller's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/background_threads.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"
#include "ops/common/row_format.h"

namespace litecache::lab {

// Source and target of one list's rows. Pages are listed individually: a table may move its lists
// while a build runs.
struct WaveList {
  std::vector<std::byte*> store;  // pages of the host store; parts end up in cluster order
  // Source pages in the steady zone; empty: rows are in the store in token order.
  std::vector<std::byte*> ring;
  std::vector<std::byte*> index;  // pages of clusters
  int32_t* begins = nullptr;      // first row in the store for every cluster
};

// Has two halves: clustering reads rows and writes centroids and sizes; storing brings the rows
// into cluster order and writes the sums of the values. Storing may have to wait until the step
// that wrote the rows is committed.
class IndexBuild final : public WaveBuild {
 public:
  IndexBuild(const RetroShape& shape, BackgroundThreads& threads, std::vector<WavePart> parts);
  ~IndexBuild() override { Cancel(); }

  // Called once per layer, when its lists' rows are available. lists: [kv_heads].
  void Start(int64_t layer, std::vector<WaveList> lists);
  // Allows rows of started layers to be stored; call when every layer has been started.
  void Store() override;
  bool storing() const override { return storing_; }

  // Returns when a layer, or all of them, are clustered and stored; rethrows a job's error.
  void Wait(int64_t layer);
  void WaitAll() override;
  // Stops as soon as possible; the results are invalid.
  void Cancel();

 private:
  struct List {
    WaveList where;
    std::vector<std::vector<int32_t>> assignments;  // for the parts' tokens
    // Two conditions: clustered, and allowed to be stored.
    std::atomic<int> ready{0};
  };
  ops::PagedRows StoreRows(const List& list) const {
    return {list.where.store.data(), shape_.pages.page_tokens, shape_.format};
  }
  // Bytes of a token's row before it is stored.
  const std::byte* Source(const List& list, int64_t token) const;
  void Cluster(List* list);
  void StorePart(List* list);
  void Ready(List* list, int64_t layer, bool here);

  const RetroShape& shape_;
  BackgroundThreads& threads_;
  std::vector<List> lists_;                         // [layers * kv_heads]
  std::vector<std::shared_ptr<TaskGroup>> groups_;  // [layers]
  std::vector<bool> started_;
  std::exception_ptr error_;  // of a job; rethrown by every Wait()
  std::atomic<bool> cancel_{false};
  bool storing_ = false;
};

}  // namespace litecache::lab
