#include "engine/prefix/io_thread.h"

#include <signal.h>

#include <utility>

namespace litecache::engine {

IoThread::IoThread() : thread_([this] { Loop(); }) {}

IoThread::~IoThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void IoThread::Post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

bool IoThread::WaitUntilIdle(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return jobs_.empty() && !busy_; });
}

void IoThread::Loop() {
  // Signals are for other threads. A write beyond the process's file size limit also raises one,
  // which would end the program; with the signal blocked, the write fails with an error like any
  // other.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace litecache::engine
