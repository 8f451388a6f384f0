// A request to generate, read and checked, and how its answer is written.
#pragma once

#include <cstdint>
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
};

struct Progress {
  int64_t total = 0;
  int64_t cached = 0;
  int64_t processed = 0;  // cached ones included
  double seconds = 0;
};

// Writes one answer; used by one thread. Choices count the samples of all prompts: prompt * n +
// sample. For a stream: Begin, any of Delta and Progress, then End or Failed. For a whole answer:
// Delta for every chunk, with what it appends thrown away, then Whole.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual void Begin(std::string* out) = 0;
  // One chunk of the engine's. Appends nothing where it changes nothing.
  virtual void Delta(int choice, const Chunk& chunk, std::string* out) = 0;
  virtual void OnProgress(const Progress& progress, std::string* out) = 0;
  virtual void End(const Usage& usage, std::string* out) = 0;
  virtual void Failed(const ApiError& error, std::string* out) = 0;
  virtual Json Whole(const Usage& usage) = 0;
};

struct GenerationJob {
  std::vector<Request> requests;  // one a prompt
  // False: max_tokens is the server's default, to be cut to what the context leaves.
  bool explicit_max_tokens = false;
  StreamOptions stream;
  std::unique_ptr<AnswerFormat> format;
};

// Read a body and encode its prompts. They throw ApiError and what tokenizer and template throw.
GenerationJob ReadChat(const Json& body, const ServedModel& model);
GenerationJob ReadCompletion(const Json& body, const ServedModel& model);
GenerationJob ReadResponses(const Json& body, const ServedModel& model);

// Parts of answers.
std::string NewId(std::string_view prefix);   // "chatcmpl-" and 24 hexadecimal digits
const char* FinishName(FinishReason reason);  // "stop", "length"
Json UsageJson(const Usage& usage);
Json ProgressJson(const Progress& progress);
// "data: ...\n\n"
void AppendEvent(const Json& data, std::string* out);

// Checks an encoded prompt against --max-prompt.
void CheckPromptSize(size_t tokens, const ServedModel& model);
// Refuses a text that cannot be a prompt of the model, however it falls into tokens; returns after
// how many tokens encoding it is given up: four times what fits, so that errors mostly have the
// number. Throws ApiError.
size_t MostPromptTokens(size_t bytes, const ServedModel& model);
// Bytes that an answer may take outside of the engine before it has left, at most.
int64_t AnswerBytes(const GenerationJob& job);
// Sets max_tokens of every request of the job: what was asked for, or `fallback` (0: no bound) as
// far as the server's limit and the context allow.
void SetMaxTokens(std::optional<int64_t> wanted, int64_t fallback, const ServedModel& model,
                  GenerationJob* job);

}  // namespace litecache::server
