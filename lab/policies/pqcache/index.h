// The centroids of a prompt's keys, computed on threads in parallel with the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/background_threads.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/shape.h"
#include "ops/common/row_format.h"

namespace litecache::lab::pqcache {

// The index of one prompt. Layers are started one by one, and each is waited for separately.
class Index {
 public:
  // iterations: of k-means; 0: as many as fit into the time of a layer's prefill, 3 to 300.
  Index(const Shape& shape, int64_t tokens, int64_t iterations);
  // Stops running work.
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  int64_t tokens() const { return tokens_; }  // of the prompt; [sink, tokens) are clustered
  bool started(int64_t layer) const { return layers_[static_cast<size_t>(layer)].started; }
  // Returns when a layer's rows are in the store, with the duration of the layer's prefill in
  // seconds. Called by every thread before it reads them.
  using Ready = std::function<double()>;
  // rows: those of the layer's KV heads, in the store; the pages of tokens [sink, tokens) must stay
  // valid while this runs.
  void Start(BackgroundThreads& threads, int64_t layer, std::span<const ops::PagedRows> rows,
             const Ready& ready);
  void Wait(int64_t layer) { layers_[static_cast<size_t>(layer)].group->Wait(); }
  void WaitAll();

  // After Wait(): centroids [subspaces][clusters][part_dim], and the codes of one part for tokens
  // [sink, tokens).
  const std::vector<float>& Centroids(int64_t layer, int64_t head) const {
    return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)].centroids;
  }
  const std::vector<uint8_t>& Codes(int64_t layer, int64_t head, int64_t part) const {
    return layers_[static_cast<size_t>(layer)]
        .heads[static_cast<size_t>(head)]
        .codes[static_cast<size_t>(part)];
  }

 private:
  struct Head {
    std::vector<float> centroids;
    std::vector<std::vector<uint8_t>> codes;  // [subspaces][tokens - sink]
  };
  struct Layer {
    bool started = false;
    std::shared_ptr<TaskGroup> group = std::make_shared<TaskGroup>();
    // Of each head; copied, because a table's lists move as it grows.
    std::vector<std::vector<std::byte*>> pages;
    std::vector<Head> heads;
  };
  void Cluster(const ops::PagedRows& rows, int64_t part, double seconds, int64_t waves, Head* head);

  const Shape& shape_;
  const int64_t tokens_;
  const int64_t iterations_;
  std::atomic<bool> stop_{false};
  std::vector<Layer> layers_;
};

}  // namespace litecache::lab::pqcache
