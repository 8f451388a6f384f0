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

// A set of tasks to wait for together. Thread-safe.
class TaskGroup {
 public:
  // Returns when all tasks that were submitted with this group are done; rethrows (once) the first
  // exception that one of them threw.
  void Wait();
  bool done() const;

 private:
  friend class BackgroundThreads;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  int64_t pending_ = 0;
  std::exception_ptr error_;
};

// Tasks start in the order in which they are submitted; with a single thread they also finish in
// that order. Threads without a task sleep.
class BackgroundThreads {
 public:
  explicit BackgroundThreads(int threads);
  // Waits for all tasks.
  ~BackgroundThreads();
  BackgroundThreads(const BackgroundThreads&) = delete;
  BackgroundThreads& operator=(const BackgroundThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  // Everything that a task refers to must stay valid until the group has been waited for.
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
