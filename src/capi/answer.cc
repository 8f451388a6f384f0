#include "capi/answer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace litecache::capi {

void Answer::Wake::Set() {
  {
    const std::lock_guard lock(mutex);
    happened = true;
  }
  changed.notify_one();
}

Answer::Answer(Engine& engine, server::GenerationJob job)
    : job_(std::move(job)), samples_(job_.requests.front().n) {
  for (Request& request : job_.requests) {
    prompt_tokens_ += static_cast<int64_t>(request.prompt.size());
    request.on_chunks = [wake = wake_] { wake->Set(); };
    if (job_.stream.progress) {
      request.on_prefill = [wake = wake_, last = int64_t{0}](int64_t done, int64_t) mutable {
        {
          const std::lock_guard lock(wake->mutex);
          wake->prefilled += done - std::exchange(last, done);
        }
        wake->Set();
      };
    }
    parts_.push_back(server::SubmitRequest(engine, job_, std::move(request)));
  }
  job_.requests.clear();
}

Answer::~Answer() { Cancel(); }

void Answer::Cancel() {
  for (const auto& part : parts_) part.handle->Cancel();
}

Answer::State Answer::Next(double seconds, std::string* text) {
  using Clock = std::chrono::steady_clock;
  text->clear();
  if (cancelled_) return State::kCancelled;
  if (ended_) return State::kEnd;
  const bool limited = seconds >= 0 && seconds < 1e8;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(limited ? seconds : 0));
  const bool stream = job_.stream.stream;
  while (true) {
    if (stream && !std::exchange(begun_, true)) job_.format->Begin(text);
    ReportProgress(text);
    const bool more = TakeChunks(text);
    if (cancelled_) return State::kCancelled;
    if (!more) {
      End(text);
      return State::kPart;
    }
    if (stream && !text->empty()) return State::kPart;
    std::unique_lock lock(wake_->mutex);
    const auto woken = [&] { return wake_->happened; };
    if (!limited) {
      wake_->changed.wait(lock, woken);
    } else if (!wake_->changed.wait_until(lock, deadline, woken)) {
      return State::kTimeout;
    }
    wake_->happened = false;
  }
}

bool Answer::TakeChunks(std::string* out) {
  bool more = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    while (!parts_[i].done) {
      bool timed_out = false;
      const auto chunk = parts_[i].handle->NextFor(0, &timed_out);
      if (!chunk) {
        parts_[i].done = !timed_out;
        break;
      }
      // The prompt may have been completed since: its progress goes before its tokens.
      ReportProgress(out);
      if (chunk->finish == FinishReason::kError) {
        ended_ = true;
        Cancel();
        throw Error(chunk->error);
      }
      if (chunk->finish == FinishReason::kCancelled) {
        cancelled_ = true;
        return false;
      }
      job_.format->Delta(static_cast<int>(i) * samples_ + chunk->sample, *chunk, out);
    }
    more = more || !parts_[i].done;
  }
  if (!job_.stream.stream) out->clear();
  return more;
}

void Answer::ReportProgress(std::string* out) {
  if (!job_.stream.progress || reported_ == prompt_tokens_) return;
  int64_t processed = 0;
  {
    const std::lock_guard lock(wake_->mutex);
    processed = wake_->prefilled;
  }
  if (processed <= reported_) return;
  reported_ = processed;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started_;
  job_.format->OnProgress(
      {prompt_tokens_, server::UsageOf(parts_).cached_tokens, processed, took.count()}, out);
}

void Answer::End(std::string* out) {
  ended_ = true;
  if (job_.stream.stream) {
    job_.format->End(server::UsageOf(parts_), out);
  } else {
    *out = server::Dump(job_.format->Whole(server::UsageOf(parts_)));
  }
}

}  // namespace litecache::capi
