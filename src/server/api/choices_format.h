// The part of the answer that both completion APIs share: an array of choices, whole or as the
// events of a stream.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "server/api/answer.h"

namespace litecache::server {

class ChoicesFormat : public AnswerFormat {
 public:
  void OnProgress(const Progress& progress, std::string* out) final;
  void End(const Usage& usage, std::string* out) final;
  void Failed(const ApiError& error, std::string* out) final;

 protected:
  // The names that one API uses.
  struct Names {
    const char* id;         // prefix of an answer's id
    const char* object;     // "object" of a whole answer
    const char* event;      // "object" of an event
    const char* content;    // field of a whole choice
    const char* delta;      // field of an event's choice
    bool prompt_in_choice;  // what is reported of a prompt goes there, not beside the choices
  };
  // The job has all of its requests.
  ChoicesFormat(const ServedModel& model, const GenerationJob& job, const Names& names);

  const ServedModel& model() const { return model_; }
  bool streams() const { return stream_.stream; }
  // Choices of one prompt, which follow each other.
  size_t samples() const { return samples_; }

  // Must be called for every chunk: records what later events or the whole answer report.
  void Note(size_t index, const Chunk& chunk);
  // Appends one event with one choice.
  void Append(size_t index, Json delta, Json logprobs, Json finish, std::string* out);
  // One choice of a whole answer, and that answer.
  Json Choice(size_t index, Json content, Json logprobs, const char* finish);
  Json Answer(Json choices, const Usage& usage);

 private:
  struct Prompt {
    std::vector<int32_t> ids;  // where they are reported
    Json logprobs = Json::array();
  };

  // Of all choices, for `usage`; -1: the model has no thoughts of its own.
  virtual int64_t ReasoningTokens() const { return -1; }

  Json Object(const char* object, Json choices) const;
  Json FullUsage(Usage usage) const;
  // Adds what is reported of a choice's tokens, and of its prompt.
  void Report(size_t index, Json* choice);
  void ReportPrompt(const Prompt& prompt, Json* object) const;

  const ServedModel& model_;
  const StreamOptions stream_;
  const size_t samples_;
  std::vector<Prompt> prompts_;
  std::vector<Json> ids_;    // by choice: of tokens that no event has reported
  std::vector<bool> begun_;  // by choice: an event has been
  const Names names_;
  const std::string id_;
  const std::time_t created_ = std::time(nullptr);
};

}  // namespace litecache::server
