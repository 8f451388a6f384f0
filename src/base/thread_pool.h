// A fixed set of workers for data-parallel loops inside one operation.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace litecache {

// Work is split over the calling thread and size() - 1 workers. One call at a time (the engine's
// thread makes it); not reentrant. Workers spin a few microseconds after a task, because a decode
// step is hundreds of loops of tens of microseconds each, then sleep on a condition variable.
class ThreadPool {
 public:
  // threads <= 0: one per core that the process may run on (AvailableCores()).
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(worker) once on each of size() threads, worker in [0, size()); returns when all are
  // done. The first exception thrown by a task is rethrown here.
  void Run(const std::function<void(int worker)>& task);

  // Calls body(begin, end, worker) over [0, count) in contiguous pieces of about `grain` items,
  // distributed dynamically. Runs inline if count <= grain. Waits for the pieces only, not for a
  // worker that arrives too late to take one (asleep, or its core taken by another process).
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t begin, int64_t end, int worker)>& body);

 private:
  void WorkerLoop(int worker);
  void Execute(int worker);
  // Runs `task` on this thread and on workers that join before it ends here, or on all if `all`.
  void Start(const std::function<void(int)>& task, bool all);

  // The current task in one word, so that joining and closing it cannot race: its number, whether
  // workers may still join, and how many are in it.
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kNumber = uint64_t{1} << 32;
  static uint64_t NumberOf(uint64_t state) { return state / kNumber; }

  std::vector<std::thread> workers_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<uint64_t> state_{0};
  std::atomic<int> pending_{0};  // workers that have not run the task yet
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

// Number of cores that this process may run on, by its affinity mask and cgroup quota.
int AvailableCores();

}  // namespace litecache
