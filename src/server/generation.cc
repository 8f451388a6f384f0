#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "server/service.h"

namespace litecache::server {
namespace {

constexpr size_t kWriteAtOnce = 32 << 10;

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Generation::Generation(std::shared_ptr<Exchange> exchange, Service& service, GenerationJob job,
                       std::shared_ptr<void> counted)
    : exchange_(std::move(exchange)),
      service_(service),
      job_(std::move(job)),
      counted_(std::move(counted)),
      samples_(job_.requests.front().n),
      prefill_(std::make_shared<PrefillState>()),
      last_token_(job_.requests.size() * static_cast<size_t>(samples_)) {
  for (const Request& request : job_.requests) {
    prompt_tokens_ += static_cast<int64_t>(request.prompt.size());
  }
}

Generation::~Generation() { LC_CHECK(!registered_); }

void Generation::Submit(Engine& engine) {
  for (Request& request : job_.requests) {
    // A weak pointer: the engine may keep the request a little longer than its answer exists.
    request.on_chunks = [exchange = std::weak_ptr(exchange_)] {
      if (auto alive = exchange.lock()) alive->Wake();
    };
    if (job_.stream.progress) {
      request.on_prefill = [state = prefill_, exchange = std::weak_ptr(exchange_),
                            last = int64_t{0}](int64_t done, int64_t) mutable {
        state->processed += done - std::exchange(last, done);
        if (auto alive = exchange.lock()) alive->Wake();
      };
    }
    parts_.push_back(SubmitRequest(engine, job_, std::move(request)));
  }
  job_.requests.clear();
}

void Generation::Begin() {
  begun_ = true;
  registered_ = true;
  service_.Register(this);
  service_.metrics().prompt_tokens.Observe(static_cast<double>(prompt_tokens_));
  if (!job_.stream.stream) return;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->BeginStream(head, ": ping\n\n");
}

void Generation::Advance() {
  if (finished_) return;
  std::string out;
  if (!begun_) {
    Begin();
    if (job_.stream.stream) job_.format->Begin(&out);
  }
  ReportProgress(&out);
  if (!TakeChunks(&out)) return;
  bool all = true;
  for (const auto& part : parts_) all = all && part.done;
  if (all) return Complete(&out);
  if (job_.stream.stream) exchange_->Write(out);
}

void Generation::ReportProgress(std::string* out) {
  if (!job_.stream.progress || reported_ == prompt_tokens_) return;
  const int64_t processed = prefill_->processed;
  if (processed <= reported_) return;
  reported_ = processed;
  const Usage usage = UsageOf(parts_);
  job_.format->OnProgress({prompt_tokens_, usage.cached_tokens, processed,
                           Seconds(Clock::now() - exchange_->started())},
                          out);
}

bool Generation::TakeChunks(std::string* out) {
  bool some = true;
  while (some) {
    some = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].done) continue;
      bool timed_out = false;
      const auto chunk = parts_[i].handle->NextFor(0, &timed_out);
      if (!chunk) {
        parts_[i].done = !timed_out;
        continue;
      }
      some = true;
      // The prompt may have been completed since Advance() checked: its progress goes before its
      // tokens.
      ReportProgress(out);
      if (!TakeChunk(i, *chunk, out)) return false;
    }
    if (!job_.stream.stream) {
      out->clear();
    } else if (out->size() >= kWriteAtOnce) {
      exchange_->Write(*out);
      out->clear();
      if (!exchange_->Writable()) return true;
    }
  }
  return true;
}

bool Generation::TakeChunk(size_t part, const Chunk& chunk, std::string* out) {
  const int choice = static_cast<int>(part) * samples_ + chunk.sample;
  Measure(choice, chunk);
  if (chunk.finish == FinishReason::kError) {
    Fail(StatusError(500, chunk.error), out);
    return false;
  }
  if (chunk.finish == FinishReason::kCancelled) {
    Fail(StatusError(503, "the server is shutting down"), out);
    return false;
  }
  job_.format->Delta(choice, chunk, out);
  return true;
}

void Generation::Measure(int choice, const Chunk& chunk) {
  Metrics& metrics = service_.metrics();
  if (!chunk.tokens.empty()) {
    const auto now = Clock::now();
    auto& last = last_token_[static_cast<size_t>(choice)];
    if (last == Clock::time_point()) {
      metrics.first_token.Observe(Seconds(now - exchange_->started()));
    } else {
      metrics.token_gap.Observe(Seconds(now - last));
    }
    last = now;
  }
  switch (chunk.finish) {
    case FinishReason::kNone:
      break;
    case FinishReason::kError:
      ++metrics.finished["error"];
      break;
    case FinishReason::kCancelled:
      ++metrics.finished["cancelled"];
      break;
    default:
      ++metrics.finished[FinishName(chunk.finish)];
  }
}

void Generation::Complete(std::string* out) {
  const Usage usage = UsageOf(parts_);
  for (const auto& part : parts_) {
    service_.metrics().queue.Observe(part.handle->Stats().queue_seconds);
  }
  if (job_.stream.stream) {
    job_.format->End(usage, out);
    exchange_->Write(*out);
    exchange_->EndStream();
  } else {
    HttpResponse response;
    response.body = Dump(job_.format->Whole(usage));
    exchange_->Finish(response);
  }
  Leave();
}

void Generation::Fail(const ApiError& error, std::string* out) {
  for (const auto& part : parts_) part.handle->Cancel();
  if (job_.stream.stream) {
    job_.format->Failed(error, out);
    exchange_->Write(*out);
    exchange_->EndStream();
  } else {
    exchange_->Finish(error.Response(ErrorShapeOf(exchange_->request().path)));
  }
  Leave();
}

void Generation::Cancel() {
  for (const auto& part : parts_) part.handle->Cancel();
}

void Generation::Abandon() {
  if (finished_) return;
  Cancel();
  service_.metrics().finished["cancelled"] += last_token_.size();
  Leave();
}

void Generation::Leave() {
  finished_ = true;
  service_.metrics().duration.Observe(Seconds(Clock::now() - exchange_->started()));
  if (std::exchange(registered_, false)) service_.Unregister(this);
  counted_ = nullptr;
}

}  // namespace litecache::server
