#include "base/background_threads.h"

#include <algorithm>
#include <utility>

namespace litecache {

void TaskGroup::Wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return pending_ == 0; });
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool TaskGroup::done() const {
  const std::lock_guard lock(mutex_);
  return pending_ == 0;
}

BackgroundThreads::BackgroundThreads(int threads) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Loop(); });
}

BackgroundThreads::~BackgroundThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BackgroundThreads::Submit(const std::shared_ptr<TaskGroup>& group,
                               std::function<void()> task) {
  {
    const std::lock_guard lock(group->mutex_);
    ++group->pending_;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({group, std::move(task)});
  }
  wake_.notify_one();
}

void BackgroundThreads::Loop() {
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      item.task();
    } catch (...) {
      error = std::current_exception();
    }
    item.task = nullptr;  // releases what the task holds before waiting threads are notified
    const std::lock_guard lock(item.group->mutex_);
    if (error != nullptr && item.group->error_ == nullptr) item.group->error_ = error;
    if (--item.group->pending_ == 0) item.group->idle_.notify_all();
  }
}

}  // namespace litecache
