// Threads that prepare requests: parsing, rendering, tokenizing, compiling.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace litecache::server {

// Clients take turns, and heavy tasks never occupy all threads: a small request does not wait for
// large ones, whoever sent them. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  // Calls Stop(); waits without a time limit.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Tasks of a client start in order, separately for heavy and other tasks. `task` must not throw.
  void Post(uint64_t client, bool heavy, std::function<void()> task);

  // Drops tasks that have not started, and waits for those that run.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace litecache::server
