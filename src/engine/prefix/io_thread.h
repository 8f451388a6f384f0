// A thread that runs jobs in order, for work that must not block the engine's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace litecache::engine {

class IoThread {
 public:
  IoThread();
  // Waits for the job in progress and drops the others.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Jobs must not throw.
  void Post(std::function<void()> job);
  // Waits up to `limit` for all posted jobs; returns whether they are done.
  bool WaitUntilIdle(std::chrono::milliseconds limit);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace litecache::engine
