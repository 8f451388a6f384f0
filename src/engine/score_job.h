// Teacher forcing: a prompt for which every row gets logits, processed on the engine's thread
// together with other requests' steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "litecache/engine.h"

namespace litecache {
class ThreadPool;
}

namespace litecache::engine {

class ScoreJob {
 public:
  // positions may be in any order and repeat; each must be in [0, tokens.size()). Throws
  // InvalidArgument for a position outside, for an empty list of tokens, and for a decode_from
  // without a prompt before it.
  ScoreJob(ScoreRequest request, int64_t vocab);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Tokens before this one are the prompt; the others are processed in decode steps.
  int64_t decode_from() const { return decode_from_; }

  // For the engine: rows [begin, begin + rows) of the tokens have logits [rows, vocab]. Throws
  // Error if they are not finite.
  void Add(int64_t begin, int64_t rows, const float* logits, ThreadPool* pool);
  // Ends the job: all rows have been added, or `error` is set.
  void Finish(std::exception_ptr error);

  // For the caller: waits for the end; `progress` is called on the caller's thread. Rethrows the
  // job's error; an exception from `progress` cancels the job.
  ScoreResult Wait(const std::function<void(int64_t done, int64_t total)>& progress);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  int64_t decode_from_;
  std::vector<size_t> by_position_;  // indices into positions_, sorted by position
  int64_t vocab_;
  ScoreResult result_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t done_ = 0;
  bool finished_ = false;
  std::exception_ptr error_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace litecache::engine
