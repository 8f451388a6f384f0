// Threads for work in the background of a computation: transfers, clustering.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace litecache {

// Tasks that are waited for together. Thread-safe.
class TaskGroup {
 public:
  // Returns when all tasks that were submitted with this group are done; rethrows the first
  // exception one of them ended with (once).
  void Wait();
  bool done() const;

 private:
  friend class BackgroundThreads;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  int64_t pending_ = 0;
  std::exception_ptr error_;
};

// Tasks start in the order they are submitted; one thread finishes them in that order, too. Threads
// without a task sleep.
class BackgroundThreads {
 public:
  explicit BackgroundThreads(int threads);
  // After all tasks.
  ~BackgroundThreads();
  BackgroundThreads(const BackgroundThreads&) = delete;
  BackgroundThreads& operator=(const BackgroundThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  // What a task refers to must live until the group is waited for.
  void Submit(const std::shared_ptr<TaskGroup>& group, std::function<void()> task);

 private:
  struct Item {
    std::shared_ptr<TaskGroup> group;
    std::function<void()> task;
  };
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace litecache
