// A queue from the engine's thread to the reader of a request's tokens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "litecache/engine.h"

namespace litecache::engine {

// Wakes the engine's thread. Handles share ownership, since they may outlive the engine.
class Doorbell {
 public:
  void Ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }
  // Returns at once if the bell has been rung since the last Wait().
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

// One request's queue of chunks. It is not bounded: max_tokens bounds what it can hold, and a slow
// reader must not delay the other requests of its batch.
class Channel {
 public:
  // on_push: called after every Push().
  Channel(int samples, uint64_t seed, int64_t prompt_tokens, std::function<void()> on_push = {})
      : on_push_(std::move(on_push)), open_(samples) {
    stats_.seed = seed;
    stats_.prompt_tokens = prompt_tokens;
  }

  // For the engine. A chunk with a finish reason ends its sample.
  void Push(Chunk chunk);
  template <typename Update>
  void UpdateStats(const Update& update) {
    std::lock_guard lock(mutex_);
    update(stats_);
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // For the reader. deadline_seconds < 0: no deadline.
  std::optional<Chunk> Pop(double deadline_seconds, bool* timed_out);
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  RequestStats Stats() const;

 private:
  const std::function<void()> on_push_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Chunk> chunks_;
  int open_;  // samples that have not finished
  RequestStats stats_;
  std::atomic<bool> cancelled_{false};
};

// The reader's end; its destructor cancels.
class Handle final : public RequestHandle {
 public:
  Handle(std::shared_ptr<Channel> channel, std::shared_ptr<Doorbell> doorbell)
      : channel_(std::move(channel)), doorbell_(std::move(doorbell)) {}
  ~Handle() override { Cancel(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::optional<Chunk> Next() override;
  std::optional<Chunk> NextFor(double seconds, bool* timed_out) override;
  void Cancel() override;
  RequestStats Stats() const override { return channel_->Stats(); }

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Doorbell> doorbell_;
};

}  // namespace litecache::engine
