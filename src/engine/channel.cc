#include "engine/channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace litecache::engine {

void Channel::Push(Chunk chunk) {
  {
    std::lock_guard lock(mutex_);
    stats_.generated_tokens += static_cast<int64_t>(chunk.tokens.size());
    if (chunk.finish != FinishReason::kNone) {
      LC_CHECK(open_ > 0);
      --open_;
    }
    chunks_.push_back(std::move(chunk));
  }
  changed_.notify_all();
  if (on_push_) on_push_();
}

std::optional<Chunk> Channel::Pop(double deadline_seconds, bool* timed_out) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return !chunks_.empty() || open_ == 0; };
  bool in_time = true;
  if (deadline_seconds < 0) {
    changed_.wait(lock, ready);
  } else if (deadline_seconds == 0) {
    in_time = ready();  // a wait without time would cost a sleep all the same, once a token
  } else {
    // Limited to a day, so that the clock's type does not overflow.
    const std::chrono::duration<double> limit(std::min(deadline_seconds, 86400.0));
    in_time =
        changed_.wait_for(lock, std::chrono::duration_cast<std::chrono::nanoseconds>(limit), ready);
  }
  if (timed_out != nullptr) *timed_out = !in_time;
  if (chunks_.empty()) return std::nullopt;
  Chunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
}

RequestStats Channel::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<Chunk> Handle::Next() { return channel_->Pop(-1, nullptr); }

std::optional<Chunk> Handle::NextFor(double seconds, bool* timed_out) {
  return channel_->Pop(std::max(seconds, 0.0), timed_out);
}

void Handle::Cancel() {
  channel_->Cancel();
  doorbell_->Ring();
}

}  // namespace litecache::engine
