#include "kv/transfer/row_pusher.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace litecache::kv {
namespace {

using Clock = std::chrono::steady_clock;
using ops::cuda::kFlagStride;

// A layer's kernels take a few hundred microseconds: threads that stop spinning earlier are late
// for nearly every transfer.
constexpr std::chrono::microseconds kSpin{1000};
// After that, something else is running: a long prompt, or steps with hits only.
constexpr std::chrono::microseconds kPause{50};
constexpr std::chrono::milliseconds kLongAfter{100};
constexpr std::chrono::milliseconds kLongPause{1};

uint64_t Load(uint64_t& flag) {
  return std::atomic_ref<uint64_t>(flag).load(std::memory_order_acquire);
}

void SpinOnce() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits by spinning, then by pausing.
class Wait {
 public:
  // True once spinning has lasted long enough that the thread may sleep.
  bool Idle() {
    constexpr int kPolls = 32;  // polls between two reads of the clock
    if (++polls_ % kPolls != 0) {
      SpinOnce();
      return false;
    }
    // With more threads than cores, threads that have a chunk to gather should run first.
    std::this_thread::yield();
    return Clock::now() - begin_ > kSpin;
  }
  void Pause() const {
    if (Clock::now() - begin_ > kLongAfter) {
      std::this_thread::sleep_for(kLongPause);
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  Clock::time_point begin_ = Clock::now();
  int polls_ = 0;
};

}  // namespace

RowPusher::RowPusher(const PushMemory& memory, int threads) : memory_(memory) {
  LC_CHECK(threads >= 1 && memory.count >= 1 && memory.chunk_bytes >= 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

RowPusher::~RowPusher() {
  SetMode(Mode::kEnding);
  for (std::thread& thread : threads_) thread.join();
}

void RowPusher::SetMode(Mode mode) {
  {
    std::lock_guard lock(mutex_);
    mode_.store(mode, std::memory_order_relaxed);
  }
  wake_.notify_all();
}

void RowPusher::Expect() {
  if (mode_.load(std::memory_order_relaxed) == Mode::kResting) SetMode(Mode::kExpecting);
}

void RowPusher::Rest() {
  if (mode_.load(std::memory_order_relaxed) == Mode::kExpecting) SetMode(Mode::kResting);
}

void RowPusher::Stop() {
  std::unique_lock lock(mutex_);
  mode_.store(Mode::kStopped, std::memory_order_relaxed);
  parked_.wait(lock, [&] { return sleeping_ == threads(); });
}

void RowPusher::Restart() {
  std::lock_guard lock(mutex_);
  LC_CHECK(mode_.load(std::memory_order_relaxed) == Mode::kStopped && sleeping_ == threads());
  const uint64_t asked = Load(memory_.mailbox->asked);
  base_.store(asked, std::memory_order_relaxed);
  next_.store(asked, std::memory_order_relaxed);
  restarts_.fetch_add(1, std::memory_order_relaxed);
  mode_.store(Mode::kResting, std::memory_order_relaxed);
}

bool RowPusher::Sleep() {
  std::unique_lock lock(mutex_);
  ++sleeping_;
  parked_.notify_all();
  wake_.wait(lock, [&] {
    const Mode mode = mode_.load(std::memory_order_relaxed);
    return mode == Mode::kExpecting || mode == Mode::kEnding;
  });
  --sleeping_;
  return mode_.load(std::memory_order_relaxed) != Mode::kEnding;
}

bool RowPusher::Await(uint64_t chunk) {
  const auto count = static_cast<uint64_t>(memory_.count);
  uint64_t& consumed = memory_.consumed[chunk % count * kFlagStride];
  const bool is_first = chunk < base_.load(std::memory_order_relaxed) + count;
  Wait wait;
  while (working()) {
    // Flags hold the chunk's number plus one.
    if (Load(memory_.mailbox->asked) > chunk && (is_first || Load(consumed) + count > chunk)) {
      return true;
    }
    if (!wait.Idle()) continue;
    if (mode_.load(std::memory_order_relaxed) == Mode::kResting) return false;
    wait.Pause();
  }
  return false;
}

void RowPusher::Push(uint64_t chunk) {
  // The device issues no new request before it has all chunks of this one, including this chunk.
  const ops::cuda::TransferRequest request = memory_.mailbox->request;
  const uint64_t first = (chunk - request.first_chunk) * request.chunk_rows;
  const uint64_t rows = std::min(request.chunk_rows, request.rows - first);
  const auto place = static_cast<int64_t>(chunk % static_cast<uint64_t>(memory_.count));
  ops::CollectRows(request.sources + first, static_cast<int64_t>(rows), request.row_bytes,
                   memory_.chunks + static_cast<size_t>(place) * memory_.chunk_bytes,
                   memory_.stores);
  const bool streaming = memory_.stores == ops::CollectStores::kStreaming;
  if (streaming) ops::FlushStores();
  std::atomic_ref<uint64_t>(memory_.ready[place * kFlagStride])
      .store(chunk + 1, std::memory_order_release);
  if (streaming) ops::FlushStores();  // the flag must not wait in a write buffer
}

void RowPusher::Loop() {
  constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t chunk = kNone, restarts = 0;
  while (true) {
    if (const uint64_t now = restarts_.load(std::memory_order_relaxed); now != restarts) {
      restarts = now;
      chunk = kNone;
    }
    if (chunk == kNone && working()) chunk = next_.fetch_add(1, std::memory_order_relaxed);
    if (chunk != kNone && Await(chunk)) {
      Push(chunk);
      chunk = kNone;
    } else if (!Sleep()) {
      return;
    }
  }
}

}  // namespace litecache::kv
