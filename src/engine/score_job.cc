#include "engine/score_job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/logits.h"

namespace litecache::engine {

ScoreJob::ScoreJob(ScoreRequest request, int64_t vocab)
    : tokens_(std::move(request.tokens)),
      positions_(std::move(request.positions)),
      decode_from_(request.decode_from),
      vocab_(vocab) {
  if (tokens_.empty()) throw InvalidArgument("nothing to score: the list of tokens is empty");
  for (int32_t token : tokens_) {
    if (token < 0 || token >= vocab) {
      throw InvalidArgument("tokens: token id {} is outside the model's vocabulary of {}", token,
                            vocab);
    }
  }
  const auto count = static_cast<int64_t>(tokens_.size());
  for (int64_t position : positions_) {
    if (position < 0 || position >= count) {
      throw InvalidArgument("position {} is not between 0 and {} (there are {} tokens)", position,
                            count - 1, count);
    }
  }
  if (decode_from_ < -1 || decode_from_ == 0 || decode_from_ > count) {
    throw InvalidArgument(
        "decode_from = {} is not between 1 and the {} tokens (-1: no token is decoded)",
        decode_from_, count);
  }
  if (decode_from_ < 0) decode_from_ = count;
  by_position_.resize(positions_.size());
  std::iota(by_position_.begin(), by_position_.end(), size_t{0});
  std::sort(by_position_.begin(), by_position_.end(),
            [&](size_t a, size_t b) { return positions_[a] < positions_[b]; });
  result_.logits.resize(positions_.size());
  result_.token_nll.resize(tokens_.size() - 1);
}

void ScoreJob::Add(int64_t begin, int64_t rows, const float* logits, ThreadPool* pool) {
  const auto given = LogprobsOfGiven(tokens_, begin, rows, logits, vocab_, -1, pool);
  for (size_t i = 0; i < given.size(); ++i) {
    result_.token_nll[static_cast<size_t>(begin) + i] = -given[i].token.logprob;
  }
  auto wanted = std::lower_bound(by_position_.begin(), by_position_.end(), begin,
                                 [&](size_t a, int64_t at) { return positions_[a] < at; });
  for (; wanted != by_position_.end() && positions_[*wanted] < begin + rows; ++wanted) {
    const float* row = logits + (positions_[*wanted] - begin) * vocab_;
    result_.logits[*wanted].assign(row, row + vocab_);
  }
  {
    std::lock_guard lock(mutex_);
    done_ = begin + rows;
  }
  changed_.notify_all();
}

void ScoreJob::Finish(std::exception_ptr error) {
  if (!error && !result_.token_nll.empty()) {
    double sum = 0;
    for (float nll : result_.token_nll) sum += double{nll};
    result_.mean_nll = sum / static_cast<double>(result_.token_nll.size());
  }
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

ScoreResult ScoreJob::Wait(const std::function<void(int64_t, int64_t)>& progress) {
  const auto total = static_cast<int64_t>(tokens_.size());
  int64_t shown = 0;
  std::exception_ptr callers_error;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return finished_ || done_ > shown; });
    if (done_ > shown) {
      shown = done_;
      if (progress && !callers_error) {
        lock.unlock();
        try {
          progress(shown, total);
        } catch (...) {
          callers_error = std::current_exception();
          cancelled_ = true;
        }
        lock.lock();
      }
      continue;
    }
    break;
  }
  // Rethrown only here, because the engine's thread must be done with the job.
  if (callers_error) std::rethrow_exception(callers_error);
  if (error_) std::rethrow_exception(error_);
  return std::move(result_);
}

}  // namespace litecache::engine
