// The host's end of transfer engine cpu-push: threads that see which rows the device asks for,
// gather them, and tell it (protocol: ops/transfer/transfer_cuda.h). Knows no CUDA; a thread can
// play the device.
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

// What threads and device share; outlives the threads.
struct PushMemory {
  ops::cuda::TransferMailbox* mailbox = nullptr;
  // The ring as the host addresses it.
  std::byte* chunks = nullptr;
  uint64_t* ready = nullptr;
  uint64_t* consumed = nullptr;
  int64_t count = 0;
  size_t chunk_bytes = 0;
  // kStreaming where the ring is the device's memory behind a write-combining mapping.
  ops::CollectStores stores = ops::CollectStores::kCached;
};

// Every thread takes the number of the next chunk that nobody has, waits until the device has asked
// for it, and gathers it. While a step runs they poll, with pauses after a while; between steps
// they sleep.
class RowPusher {
 public:
  RowPusher(const PushMemory& memory, int threads);
  ~RowPusher();
  RowPusher(const RowPusher&) = delete;
  RowPusher& operator=(const RowPusher&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // The device may ask from here on: wakes the threads.
  void Expect();
  // The device asks for nothing until Expect(): threads without work go to sleep soon.
  void Rest();

  // Returns when no thread touches the memory or the rows any more.
  void Stop();
  // After Stop(), while the device does nothing: forgets what it has asked for so far.
  void Restart();

 private:
  enum class Mode : uint32_t { kResting, kExpecting, kStopped, kEnding };

  void Loop();
  // Whether the device has asked for `chunk` and its place in the ring is free; false when the mode
  // says that it is not to be waited for now.
  bool Await(uint64_t chunk);
  void Push(uint64_t chunk);
  // Blocks while there is nothing to wait for; false at the end.
  bool Sleep();
  void SetMode(Mode mode);
  bool working() const { return mode_.load(std::memory_order_relaxed) < Mode::kStopped; }

  const PushMemory memory_;
  std::atomic<Mode> mode_{Mode::kResting};
  std::atomic<uint64_t> next_{0};  // chunk that nobody has taken
  std::atomic<uint64_t> base_{0};  // chunks before it were asked for before the last Restart()
  std::atomic<uint64_t> restarts_{0};

  std::mutex mutex_;
  std::condition_variable wake_;    // the threads
  std::condition_variable parked_;  // Stop()
  int sleeping_ = 0;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace litecache::kv
