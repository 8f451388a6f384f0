// One generating request: connects the engine's chunks with the client.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "server/api/answer.h"
#include "server/http/exchange.h"
#include "server/metrics/metrics.h"

namespace litecache::server {

class Service;

// Takes chunks only as fast as the client reads them; for a slow client the rest waits in the
// request's queue in the engine, which max_tokens bounds.
class Generation final : public Producer {
 public:
  // `counted` is kept until the answer has ended.
  Generation(std::shared_ptr<Exchange> exchange, Service& service, GenerationJob job,
             std::shared_ptr<void> counted);
  ~Generation() override;

  // Submits the job's requests. Called on a worker's thread, before Exchange::Attach(). Throws what
  // Engine::Submit throws; the requests submitted before the error are cancelled.
  void Submit(Engine& engine);

  void Advance() override;
  void Abandon() override;
  // Called when the server shuts down.
  void Cancel();

 private:
  using Clock = std::chrono::steady_clock;

  // Written by the engine's thread.
  struct PrefillState {
    std::atomic<int64_t> processed{0};
  };

  void Begin();
  void ReportProgress(std::string* out);
  // Takes chunks while there are some and the client keeps up. Returns false if the answer has
  // failed.
  bool TakeChunks(std::string* out);
  bool TakeChunk(size_t part, const Chunk& chunk, std::string* out);
  void Measure(int choice, const Chunk& chunk);
  void Complete(std::string* out);
  void Fail(const ApiError& error, std::string* out);
  void Leave();

  std::shared_ptr<Exchange> exchange_;
  Service& service_;
  GenerationJob job_;
  std::shared_ptr<void> counted_;
  int samples_;
  int64_t prompt_tokens_ = 0;
  std::vector<SubmittedRequest> parts_;  // one per prompt
  std::shared_ptr<PrefillState> prefill_;
  int64_t reported_ = -1;

  std::vector<Clock::time_point> last_token_;  // by choice; the epoch before the first token
  bool begun_ = false;
  bool registered_ = false;
  bool finished_ = false;
};

}  // namespace litecache::server
