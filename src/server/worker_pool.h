// Threads that prepare requests: parse, render, tokenize, compile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace litecache::server {

// Clients take turns, and what is heavy never has all threads: a small request does not wait for
// large ones, whoever sent them. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  // Stop(), without a limit of time.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // A client's tasks begin in their order, the heavy ones and the others apart. `task` must not
  // throw.
  void Post(uint64_t client, bool heavy, std::function<void()> task);

  // Drops what has not begun, and waits for what runs.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace litecache::server
