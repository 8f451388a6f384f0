#include "server/worker_pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace litecache::server {

using Task = std::function<void()>;

struct WorkerPool::Impl {
  // Tasks by client; clients in the order of their turns.
  class Turns {
   public:
    bool empty() const { return order_.empty(); }
    void Push(uint64_t client, Task task) {
      auto& tasks = tasks_[client];
      if (tasks.empty()) order_.push_back(client);
      tasks.push_back(std::move(task));
    }
    Task Pop() {
      const uint64_t client = order_.front();
      order_.pop_front();
      const auto found = tasks_.find(client);
      Task task = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) {
        tasks_.erase(found);
      } else {
        order_.push_back(client);
      }
      return task;
    }

   private:
    std::unordered_map<uint64_t, std::deque<Task>> tasks_;
    std::deque<uint64_t> order_;
  };

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !light.empty() || MayTakeHeavy(); });
      if (stopping) return;
      // Heavy and light tasks alternate: a stream of small requests does not keep large ones
      // waiting.
      const bool take_heavy = MayTakeHeavy() && (light.empty() || !last_was_heavy);
      last_was_heavy = take_heavy;
      Task task = (take_heavy ? heavy : light).Pop();
      heavy_running += take_heavy ? 1 : 0;
      lock.unlock();
      task();
      task = nullptr;  // what it captures is released outside the lock
      lock.lock();
      heavy_running -= take_heavy ? 1 : 0;
      if (take_heavy) changed.notify_one();
    }
  }
  bool MayTakeHeavy() const { return !heavy.empty() && heavy_running < most_heavy; }

  std::mutex mutex;
  std::condition_variable changed;
  Turns light, heavy;
  bool last_was_heavy = false;
  bool stopping = false;
  int heavy_running = 0;
  int most_heavy = 1;
  std::vector<std::thread> threads;
};

WorkerPool::WorkerPool(int threads) : impl_(std::make_unique<Impl>()) {
  impl_->most_heavy = std::max(1, threads - 1);
  for (int i = 0; i < threads; ++i) impl_->threads.emplace_back([this] { impl_->Run(); });
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Post(uint64_t client, bool heavy, std::function<void()> task) {
  {
    const std::lock_guard lock(impl_->mutex);
    (heavy ? impl_->heavy : impl_->light).Push(client, std::move(task));
  }
  impl_->changed.notify_one();
}

void WorkerPool::Stop() {
  Impl::Turns light, heavy;  // destroyed without the lock
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    std::swap(light, impl_->light);
    std::swap(heavy, impl_->heavy);
  }
  impl_->changed.notify_all();
  for (std::thread& thread : impl_->threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace litecache::server
