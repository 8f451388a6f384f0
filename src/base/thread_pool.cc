#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <string>
#include <utility>

namespace litecache {
namespace {

// About 20 us: longer than the gap between two operations of a decode step, and too short for other
// processes to notice that a core is taken.
constexpr int kSpins = 4000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// CPU quota of the cgroup in cores, or infinity.
double CgroupQuota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
  return HUGE_VAL;
}

}  // namespace

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  const double quota = CgroupQuota();
  if (quota < cores) cores = static_cast<int>(std::ceil(quota));
  return std::max(cores, 1);
}

ThreadPool::ThreadPool(int threads) {
  const int total = threads > 0 ? threads : AvailableCores();
  workers_.reserve(static_cast<size_t>(total - 1));
  for (int worker = 1; worker < total; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    state_.fetch_add(kNumber, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void ThreadPool::Execute(int worker) {
  try {
    (*task_)(worker);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  const auto idle = [&] { return NumberOf(state_.load(std::memory_order_acquire)) == seen; };
  while (true) {
    for (int spin = 0; spin < kSpins && idle(); ++spin) Relax();
    if (idle()) {
      std::unique_lock lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, [&] { return !idle(); });
      --sleepers_;
    }
    // In this order: whoever has seen the destructor's number also sees stop_, and nobody waits for
    // another number after it.
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = NumberOf(state);
    if (stop_) return;
    while (NumberOf(state) == seen && (state & kOpen) != 0) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      Execute(worker);
      pending_.fetch_sub(1, std::memory_order_acq_rel);
      state_.fetch_sub(1, std::memory_order_acq_rel);
      break;
    }
  }
}

void ThreadPool::Start(const std::function<void(int)>& task, bool all) {
  // No worker is still in the previous task: its call waited for that.
  task_ = &task;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    // The lock pairs with a worker that checked the state and is about to sleep.
    std::lock_guard lock(mutex_);
    const uint64_t number = NumberOf(state_.load(std::memory_order_relaxed)) + 1;
    state_.store(number * kNumber + kOpen, std::memory_order_release);
  }
  if (sleepers_.load() > 0) wake_.notify_all();
  Execute(0);
  const auto wait = [](const auto& done) {
    for (int spin = 0; !done(); ++spin) {
      if (spin < kSpins) {
        Relax();
      } else {
        std::this_thread::yield();  // a worker may have lost its core
      }
    }
  };
  if (all) wait([&] { return pending_.load(std::memory_order_acquire) == 0; });
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  wait([&] { return state_.load(std::memory_order_acquire) % kOpen == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::Run(const std::function<void(int)>& task) {
  if (workers_.empty()) {
    task(0);
    return;
  }
  Start(task, true);
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain || workers_.empty()) {
    body(0, count, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  const std::function<void(int)> pieces = [&](int worker) {
    for (int64_t begin = next.fetch_add(grain); begin < count; begin = next.fetch_add(grain)) {
      body(begin, std::min(begin + grain, count), worker);
    }
  };
  Start(pieces, false);
}

}  // namespace litecache
