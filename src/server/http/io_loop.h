// The thread that performs all network I/O.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace litecache::server {

// One thread runs all connections, so nothing that they own needs a lock. A streamed token costs it
// 25 us including sending, so it does not limit the engine; longer work (tokenizing a prompt) goes
// to a WorkerPool.
class IoLoop {
 public:
  IoLoop();
  // Calls Stop().
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  void Start();
  // Runs `task` on the loop's thread later; any thread may call this. After Stop() it never runs.
  void Post(std::function<void()> task);
  // Calls `task` on the loop's thread at every interval. Call before Start().
  void Every(std::chrono::milliseconds interval, std::function<void()> task);
  // Ends the thread; posted tasks that have not run are dropped. Not callable from the loop's own
  // thread.
  void Stop();

  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace litecache::server
