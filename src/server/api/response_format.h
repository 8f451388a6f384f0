// Fields that set the format of an answer.
#pragma once

#include <string>

#include "grammar/grammar.h"
#include "server/api/fields.h"
#include "server/api/model.h"

namespace litecache::server {

// "response_format" of chats and completions: text, json_object, or json_schema with its schema.
// Sets request->constraint. Throws an ApiError that names the place of an unsupported part of a
// schema.
void ReadResponseFormat(Fields& fields, const ServedModel& model, Request* request);

// "text.format" of responses: the same, with the schema's fields next to "type". Returns the part
// that the response repeats.
Json ReadTextFormat(Fields& text, const ServedModel& model, Request* request);

// vLLM's "structured_outputs": {"json", "json_object", "regex", "choice" or "grammar"}, their older
// names "guided_json" and the like, and llama-server's "grammar".
void ReadStructuredOutputs(Fields& fields, const ServedModel& model, Request* request);

// Calls a function that builds a grammar; its errors are reported for a field.
template <typename Make>
std::shared_ptr<const TokenConstraint> MakeGrammar(const std::string& field, const Make& make) {
  try {
    return make();
  } catch (const Unsupported& error) {
    throw NotSupported(field, "'{}': {}", field, error.what());
  } catch (const InvalidArgument& error) {
    throw BadRequest(field, "'{}': {}", field, error.what());
  }
}

}  // namespace litecache::server
