// A parsed and validated request to generate, and the format of its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "server/api/error.h"
#include "server/api/generation_fields.h"
#include "server/api/json.h"
#include "server/api/model.h"

namespace litecache::server {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t generated_tokens = 0;
  int64_t reasoning_tokens = -1;  // of these; -1: the model has no thoughts of its own
  double prefill_seconds = 0;     // until the first token
  double decode_seconds = 0;      // from the first token on
  DraftStats drafts = {};
};

struct Progress {
  int64_t total = 0;
  int64_t cached = 0;
  int64_t processed = 0;  // cached ones included
  double seconds = 0;
};

// Writes one answer; used by one thread. Choices number the samples of all prompts: prompt * n +
// sample. Order of calls for a stream: Begin, any number of Delta and Progress, then End or Failed.
// For a whole answer: Delta for every chunk, discarding what it appends, then Whole.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual void Begin(std::string* out) = 0;
  // Takes one chunk from the engine. Appends nothing if the chunk changes nothing.
  virtual void Delta(int choice, const Chunk& chunk, std::string* out) = 0;
  virtual void OnProgress(const Progress& progress, std::string* out) = 0;
  virtual void End(const Usage& usage, std::string* out) = 0;
  virtual void Failed(const ApiError& error, std::string* out) = 0;
  virtual Json Whole(const Usage& usage) = 0;
};

struct GenerationJob {
  std::vector<Request> requests;  // one per prompt
  // False: max_tokens is the server's default, which is reduced to what the context leaves.
  bool explicit_max_tokens = false;
  StreamOptions stream;
  std::unique_ptr<AnswerFormat> format;
};

// One request of a job after it has been submitted.
struct SubmittedRequest {
  std::shared_ptr<RequestHandle> handle;
  bool done = false;
};

// Submits a request of `job`. If the answer's length is the server's default and memory holds less,
// the length is reduced. Throws what Engine::Submit throws.
SubmittedRequest SubmitRequest(Engine& engine, const GenerationJob& job, Request request);
// The tokens of all requests together, and the times of the slowest.
Usage UsageOf(const std::vector<SubmittedRequest>& requests);

// Parse a body and encode its prompts. They throw ApiError and whatever tokenizer and template
// throw.
GenerationJob ReadChat(const Json& body, const ServedModel& model);
GenerationJob ReadCompletion(const Json& body, const ServedModel& model);
GenerationJob ReadInfill(const Json& body, const ServedModel& model);
GenerationJob ReadResponses(const Json& body, const ServedModel& model);
GenerationJob ReadAnthropic(const Json& body, const ServedModel& model);
// /v1/messages/count_tokens.
Json CountTokensJson(const Json& body, const ServedModel& model);

// Helpers for building answers.
std::string NewId(std::string_view prefix);   // "chatcmpl-" and 24 hexadecimal digits
const char* FinishName(FinishReason reason);  // "stop", "length"
Json UsageJson(const Usage& usage);
// As llama.cpp's server has them: prompt_n, prompt_ms, predicted_n, predicted_ms, ...
Json TimingsJson(const Usage& usage);
Json ProgressJson(const Progress& progress);
// "data: ...\n\n"
void AppendEvent(const Json& data, std::string* out);

// Checks an encoded prompt against --max-prompt.
void CheckPromptSize(size_t tokens, const ServedModel& model);
// Rejects a text too long to be a prompt of the model however it is tokenized. Returns the number
// of tokens after which encoding stops: four times what fits, so that most errors can report the
// exact count. Throws ApiError.
size_t MostPromptTokens(size_t bytes, const ServedModel& model);
// Encodes a prompt of so many bytes: encode(MostPromptTokens()), whose CapacityError gets the
// model's context.
std::vector<int32_t> EncodePrompt(size_t bytes, const ServedModel& model,
                                  const std::function<std::vector<int32_t>(size_t most)>& encode);
// Upper bound on the bytes an answer may occupy outside the engine before it is sent.
int64_t AnswerBytes(const GenerationJob& job);
// Sets max_tokens of every request of the job: the requested value, or `fallback` (0: no bound) as
// far as the server's limit and the context allow.
void SetMaxTokens(std::optional<int64_t> wanted, int64_t fallback, const ServedModel& model,
                  GenerationJob* job);

}  // namespace litecache::server
