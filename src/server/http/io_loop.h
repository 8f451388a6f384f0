// The thread that moves bytes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace litecache::server {

// One thread runs all connections: nothing that they own needs a lock. A streamed token costs it
// 25 us, sending included, so that it is not what limits an engine; work that takes longer
// (tokenizing a prompt) goes to a WorkerPool.
class IoLoop {
 public:
  IoLoop();
  // Stops first.
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  void Start();
  // Runs `task` on the loop's thread, later; any thread may call it. After Stop() it never runs.
  void Post(std::function<void()> task);
  // Calls `task` on the loop's thread again and again. Before Start().
  void Every(std::chrono::milliseconds interval, std::function<void()> task);
  // Ends the thread; what was posted and has not run does not run any more. Not from its own
  // thread.
  void Stop();

  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace litecache::server
