// The transfer thread of the CPU backend: copies rows from the host store into two staging buffers
// while the stream computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/common/row_format.h"

namespace litecache::kv::offload {

// The copies for one layer of one sequence, piece after piece.
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

  // Starts a step's transfers in order. Transfer i uses buffer i % kBuffers, which the pieces'
  // targets point to, and starts when transfer i - kBuffers has been released. `transfers` must
  // stay valid until the last one is released or Stop() returns.
  void Start(const std::vector<Transfer>* transfers);
  // Returns when `pieces` pieces of a transfer have arrived. Throws Error after some minutes.
  void Await(size_t transfer, size_t pieces);
  // Call, in order, when a transfer's buffer has been read.
  void Release(size_t transfer);
  // Ends the current transfers; returns when the thread accesses no buffer.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;     // for the thread: there is work
  std::condition_variable arrived_;  // for callers that wait for the thread
  const std::vector<Transfer>* transfers_ = nullptr;
  size_t next_ = 0;      // the current transfer
  size_t pieces_ = 0;    // how many of its pieces have arrived
  size_t released_ = 0;  // number of released transfers
  bool busy_ = false;    // a piece is being copied
  bool ending_ = false;
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace litecache::kv::offload
