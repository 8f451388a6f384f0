// The fields that all generating endpoints share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "server/api/fields.h"
#include "server/api/model.h"

namespace litecache::server {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
  bool timings = false;      // in the answer, or in a stream's last event
  bool progress = false;     // events while the prompt is processed
  bool token_ids = false;    // beside the text
  int prompt_logprobs = -1;  // as vLLM writes them; -1: not
};

// Reads temperature, top_p, top_k, min_p, the penalties, seed, logit_bias, n, stop, stop_token_ids,
// ignore_eos, skip_special_tokens, min_tokens, bad_words, include_stop_str_in_output and structured
// outputs, and rejects related fields that this server does not support. Defaults come from the
// model's generation_config.json; a request that asks for sampling (top_k, top_p, min_p, several
// samples) of a model whose default is greedy gets temperature 1.
Request ReadGenerationFields(Fields& fields, const ServedModel& model);

// The answer's length from the field `name`, at least `least` and checked against the server's
// limit; nullopt if the request does not set it, or sets it to -1.
std::optional<int64_t> ReadMaxTokens(Fields& fields, std::string_view name,
                                     const ServedModel& model, int64_t least = 1);

// truncate_prompt_tokens: how many tokens of the prompt are kept, the last ones; 0: all. -1 asks
// for as many as the context holds beside the answer.
int64_t ReadTruncation(Fields& fields, const ServedModel& model, std::optional<int64_t> max_tokens);
void Truncate(int64_t most, std::vector<int32_t>* prompt);

StreamOptions ReadStreamFields(Fields& fields);

// Reads return_token_ids and prompt_logprobs, which both completion APIs have.
void ReadReportFields(Fields& fields, StreamOptions* options, Request* request);

// Reads "model"; 404 for a model that is not served.
void ReadModelField(Fields& fields, const ServedModel& model);

}  // namespace litecache::server
