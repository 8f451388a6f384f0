// Bounds on the work that one request may cause in a thread: loops whose length comes from outside
// call CheckWork(), and code that serves requests sets a WorkLimit around them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "base/error.h"

namespace litecache {

// Thrown by CheckWork().
class WorkStopped : public Error {
 public:
  WorkStopped(const std::string& message, bool cancelled) : Error(message), cancelled_(cancelled) {}
  // True: the result is no longer needed; false: the work took too long.
  bool cancelled() const { return cancelled_; }

 private:
  bool cancelled_;
};

// Limits the thread that creates it, until it is destroyed; enclosing limits stay in effect.
class WorkLimit {
 public:
  // `cpu`: limit on this thread's processor time, so that a busy machine does not cause errors.
  // `cancelled` is called about every millisecond.
  WorkLimit(std::chrono::milliseconds cpu, std::function<bool()> cancelled);
  ~WorkLimit() { current_ = outer_; }
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

 private:
  friend void CheckWork(int64_t amount);
  void Look();

  static constexpr int64_t kBetweenLooks = 10'000;  // reading the clock takes 0.3 us
  static constinit thread_local WorkLimit* current_;

  WorkLimit* const outer_;
  const std::chrono::nanoseconds limit_;
  const std::chrono::nanoseconds end_;  // in processor time of the thread
  const std::function<bool()> cancelled_;
  int64_t left_ = kBetweenLooks;
};

// Does nothing without a WorkLimit. amount: about how much work is done until the next call, in
// units of some 10 to 100 ns: items visited, or bytes touched divided by 64. Throws WorkStopped.
inline void CheckWork(int64_t amount = 1) {
  WorkLimit* limit = WorkLimit::current_;
  if (limit != nullptr && (limit->left_ -= amount) < 0) limit->Look();
}

}  // namespace litecache
