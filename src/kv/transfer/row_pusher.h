// The host's side of transfer engine cpu-push: threads that read which rows the device requests,
// gather them, and signal completion (protocol: ops/transfer/transfer_cuda.h). Free of CUDA, so a
// test thread can act as the device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/rows/collect_rows.h"
#include "ops/transfer/transfer_cuda.h"

namespace litecache::kv {

// Memory that threads and device share; it must outlive the threads.
struct PushMemory {
  ops::cuda::TransferMailbox* mailbox = nullptr;
  // The ring at its host address.
  std::byte* chunks = nullptr;
  uint64_t* ready = nullptr;
  uint64_t* consumed = nullptr;
  int64_t count = 0;
  size_t chunk_bytes = 0;
  // kStreaming if the ring is device memory behind a write-combining mapping.
  ops::CollectStores stores = ops::CollectStores::kCached;
};

// Each thread takes the number of the next free chunk, waits until the device requests it, and
// gathers it. During a step the threads poll, after a while with pauses; between steps they sleep.
class RowPusher {
 public:
  RowPusher(const PushMemory& memory, int threads);
  ~RowPusher();
  RowPusher(const RowPusher&) = delete;
  RowPusher& operator=(const RowPusher&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // Wakes the threads: the device may make requests from here on.
  void Expect();
  // The device makes no requests until Expect(): idle threads go to sleep soon.
  void Rest();

  // Returns when no thread accesses the memory or the rows.
  void Stop();
  // Call after Stop(), while the device is idle: drops all earlier requests.
  void Restart();

 private:
  enum class Mode : uint32_t { kResting, kExpecting, kStopped, kEnding };

  void Loop();
  // Waits until the device has requested `chunk` and its place in the ring is free; false if the
  // current mode says not to wait.
  bool Await(uint64_t chunk);
  void Push(uint64_t chunk);
  // Blocks while there is nothing to wait for; false at the end.
  bool Sleep();
  void SetMode(Mode mode);
  bool working() const { return mode_.load(std::memory_order_relaxed) < Mode::kStopped; }

  const PushMemory memory_;
  std::atomic<Mode> mode_{Mode::kResting};
  std::atomic<uint64_t> next_{0};  // the next chunk to take
  std::atomic<uint64_t> base_{0};  // chunks before it were requested before the last Restart()
  std::atomic<uint64_t> restarts_{0};

  std::mutex mutex_;
  std::condition_variable wake_;    // for the threads
  std::condition_variable parked_;  // for Stop()
  int sleeping_ = 0;
  std::vector<std::thread> threads_;  // declared last: they use the other members
};

}  // namespace litecache::kv
