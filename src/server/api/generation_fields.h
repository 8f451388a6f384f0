// The fields that all generating endpoints share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "litecache/engine.h"
#include "server/api/fields.h"
#include "server/api/model.h"

namespace litecache::server {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
  bool timings = false;   // in the answer, or in a stream's last event
  bool progress = false;  // events while the prompt is processed
};

// Reads temperature, top_p, top_k, min_p, the penalties, seed, logit_bias, n, stop, stop_token_ids,
// ignore_eos, skip_special_tokens and guided_json, and rejects related fields that this server does
// not support. Defaults come from the model's generation_config.json; a request that asks for
// sampling (top_k, top_p, min_p, several samples) of a model whose default is greedy gets
// temperature 1.
Request ReadGenerationFields(Fields& fields, const ServedModel& model);

// The answer's length from the field `name`, checked against the server's limit; nullopt if the
// request does not set it, or sets it to -1.
std::optional<int64_t> ReadMaxTokens(Fields& fields, std::string_view name,
                                     const ServedModel& model);

StreamOptions ReadStreamFields(Fields& fields);

// Reads "model"; 404 for a model that is not served.
void ReadModelField(Fields& fields, const ServedModel& model);

}  // namespace litecache::server
