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
  bool progress = false;  // events while the prompt is processed
};

// temperature, top_p, top_k, min_p, the penalties, seed, logit_bias, n, stop, stop_token_ids,
// ignore_eos, skip_special_tokens, guided_json, and the refusal of related fields this server
// lacks. What is not given comes from the model's generation_config.json; a request that asks for
// sampling (top_k, top_p, min_p, several samples) of a model whose default is greedy gets
// temperature 1.
Request ReadGenerationFields(Fields& fields, const ServedModel& model);

// An answer's length from the field `name`: checked against the server's limit; nullopt when the
// request does not say.
std::optional<int64_t> ReadMaxTokens(Fields& fields, std::string_view name,
                                     const ServedModel& model);

StreamOptions ReadStreamFields(Fields& fields);

// "model": 404 for another one than is served.
void ReadModelField(Fields& fields, const ServedModel& model);

}  // namespace litecache::server
