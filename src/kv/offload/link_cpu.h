// The transfer thread of the CPU backend: brings rows from the host store into two staging buffers
// while the stream computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/common/row_format.h"

namespace litecache::kv::offload {

// What travels for one layer of one sequence, piece after piece.
struct Transfer {
  std::vector<ops::ConvertWork> pieces;
};

class Link {
 public:
  static constexpr size_t kBuffers = 2;

  Link();
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Starts a step's transfers, in their order. Transfer i goes to buffer i % kBuffers, which the
  // pieces' targets name: it begins when transfer i - kBuffers has been released. The transfers
  // stay where they are until the last is released or Stop() returns.
  void Start(const std::vector<Transfer>* transfers);
  // Returns when `pieces` pieces of a transfer have arrived. Throws Error when that takes minutes.
  void Await(size_t transfer, size_t pieces);
  // The transfer's buffer has been read. In order.
  void Release(size_t transfer);
  // Ends what is under way: returns when the thread touches nothing.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;     // the thread: something to do
  std::condition_variable arrived_;  // whoever waits for the thread
  const std::vector<Transfer>* transfers_ = nullptr;
  size_t next_ = 0;      // transfer the thread is at
  size_t pieces_ = 0;    // of it, that have arrived
  size_t released_ = 0;  // transfers
  bool busy_ = false;    // a piece is moving
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace litecache::kv::offload
