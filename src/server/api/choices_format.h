// The part of the answer that both completion APIs share: an array of choices, whole or as the
// events of a stream.
#pragma once

#include <ctime>
#include <string>

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
    const char* id;       // prefix of an answer's id
    const char* object;   // "object" of a whole answer
    const char* event;    // "object" of an event
    const char* content;  // field of a whole choice
    const char* delta;    // field of an event's choice
  };
  ChoicesFormat(const ServedModel& model, const StreamOptions& stream, const Names& names)
      : model_(model), stream_(stream), names_(names), id_(NewId(names.id)) {}

  const ServedModel& model() const { return model_; }
  bool streams() const { return stream_.stream; }

  // Appends one event with one choice.
  void Append(size_t index, Json delta, Json logprobs, Json finish, std::string* out) const;
  // One choice of a whole answer, and that answer.
  Json Choice(size_t index, Json content, Json logprobs, const char* finish) const;
  Json Answer(Json choices, const Usage& usage) const;

 private:
  Json Object(const char* object, Json choices) const;

  const ServedModel& model_;
  const StreamOptions stream_;
  const Names names_;
  const std::string id_;
  const std::time_t created_ = std::time(nullptr);
};

}  // namespace litecache::server
