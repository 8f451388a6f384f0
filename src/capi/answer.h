// One answer of the engine, in the formats of the server, read by a thread that waits for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "server/api/answer.h"

namespace litecache::capi {

class Answer {
 public:
  enum class State { kPart, kEnd, kTimeout, kCancelled };

  // Submits the job's requests. Throws what Engine::Submit throws.
  Answer(Engine& engine, server::GenerationJob job);
  // Cancels what has not ended.
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Waits up to `seconds` (negative: without limit). kPart: *text is the next part; of an answer
  // that is no stream there is one. Throws Error if the engine has failed. One thread at a time.
  State Next(double seconds, std::string* text);
  // Any thread.
  void Cancel();

 private:
  // The engine may call back a little longer than the answer exists.
  struct Wake {
    std::mutex mutex;
    std::condition_variable changed;
    bool happened = false;
    int64_t prefilled = 0;  // prompt tokens, over all requests
    void Set();
  };

  // Takes all chunks that are ready; returns whether some are left to come.
  bool TakeChunks(std::string* out);
  void ReportProgress(std::string* out);
  void End(std::string* out);

  server::GenerationJob job_;
  const int samples_;
  int64_t prompt_tokens_ = 0;
  std::vector<server::SubmittedRequest> parts_;  // one per prompt
  std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  int64_t reported_ = -1;
  bool begun_ = false;
  bool ended_ = false;
  bool cancelled_ = false;
};

}  // namespace litecache::capi
