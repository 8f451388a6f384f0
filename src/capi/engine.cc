// The engine in litecache/litecache.h.
#include "litecache/engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/stack.h"
#include "capi/answer.h"
#include "capi/status.h"
#include "cli/app.h"
#include "model/config.h"
#include "server/api/answer.h"
#include "server/api/endpoints.h"
#include "server/api/information.h"
#include "server/api/stats.h"
#include "server/server.h"

using litecache::Engine;
using litecache::EngineOptions;
using litecache::InvalidArgument;
using litecache::capi::Answer;
using litecache::capi::CheckPointer;
using litecache::capi::CopyJson;
using litecache::capi::CopyText;
using litecache::capi::Guarded;
using litecache::capi::Json;
using litecache::server::ServedModel;

struct litecache_engine {
  std::unique_ptr<ServedModel> model;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

struct litecache_answer {
  Answer answer;
};

namespace {

template <class S>
Json OptionsJson(std::span<const litecache::Option<S>> table) {
  Json list = Json::array();
  const S defaults;
  for (const auto& option : table) {
    list.push_back({{"name", option.name},
                    {"flag", option.LongFlag()},
                    {"type", option.is_flag ? "on, off" : option.type},
                    {"values", option.values},
                    {"help", option.help},
                    {"group", option.group},
                    {"policies", option.policies},
                    {"default", option.get(defaults)}});
  }
  return list;
}

Json StatsOf(const litecache_engine& engine) {
  const std::chrono::duration<double> up = std::chrono::steady_clock::now() - engine.started;
  const auto stats = engine.model->engine->Stats();
  return litecache::server::StatsJson(*engine.model, up.count(), stats.running + stats.waiting);
}

Json CallJson(const litecache_engine& engine, std::string_view path, const char* body) {
  namespace server = litecache::server;
  const ServedModel& model = *engine.model;
  if (path == "/props") return server::PropsJson(model);
  if (path == "/stats") return StatsOf(engine);
  for (const server::JsonEndpoint& endpoint : server::JsonEndpoints()) {
    if (endpoint.path == path && endpoint.compute != nullptr) {
      return endpoint.compute(server::ParseBody(body == nullptr ? "{}" : body), model);
    }
  }
  throw InvalidArgument("litecache_call: no path {}; see litecache.h for the list", path);
}

litecache::server::GenerationJob ReadJob(const ServedModel& model, std::string_view path,
                                         const char* body) {
  namespace server = litecache::server;
  for (const server::JsonEndpoint& endpoint : server::JsonEndpoints()) {
    if (endpoint.path == path && endpoint.read_job != nullptr) {
      return endpoint.read_job(server::ParseBody(body == nullptr ? "{}" : body), model);
    }
  }
  throw InvalidArgument("litecache_start: no path {}; see litecache.h for the list", path);
}

// Removes a text from the options; empty if it is not among them.
std::string TakeText(Json* values, const char* name, const char* expected) {
  const auto found = values->find(name);
  if (found == values->end()) return "";
  if (!found->is_string()) throw InvalidArgument("option {}: {}", name, expected);
  std::string text = found->get<std::string>();
  values->erase(found);
  return text;
}

}  // namespace

const char* litecache_version() { return LC_VERSION; }

int litecache_main(int argc, char** argv) {
  litecache::EnsureStack();
  return litecache::cli::RunProgram({argv + std::min(argc, 1), argv + argc});
}

litecache_status litecache_options(int kv_only, char** json) {
  return Guarded([&] {
    CheckPointer(json, "json");
    *json = CopyJson(kv_only != 0 ? OptionsJson(litecache::KvOptionTable())
                                  : OptionsJson(litecache::EngineOptionTable()));
  });
}

litecache_status litecache_open(const char* model, const char* options, litecache_engine** engine) {
  return Guarded([&] {
    CheckPointer(engine, "engine");
    Json values = litecache::capi::ParseObject(options, "options");
    if (!values.contains("shape")) CheckPointer(model, "model");
    const std::string chat_template = TakeText(&values, "chat_template", "a file is expected");
    const std::string shape = TakeText(&values, "shape", "the name of a shape is expected");
    EngineOptions engine_options;
    litecache::capi::SetOptions(values, litecache::EngineOptionTable(), &engine_options);
    auto loaded = shape.empty() ? Engine::Load(model, engine_options)
                                : Engine::Random(shape, /*seed=*/1, engine_options);
    // The process is the caller's own: it sets no bound on what its requests ask for.
    const litecache::server::RequestLimits limits{.default_max_tokens = 0,
                                                  .max_batch = loaded->memory_plan().max_batch,
                                                  .max_samples = 1 << 16,
                                                  .trust_chat_template = true};
    auto made = std::make_unique<litecache_engine>();
    made->model = litecache::server::MakeServedModel(std::move(loaded), {}, chat_template, limits);
    *engine = made.release();
  });
}

void litecache_close(litecache_engine* engine) { delete engine; }

litecache_status litecache_call(litecache_engine* engine, const char* path, const char* body,
                                char** json) {
  return Guarded([&] {
    CheckPointer(engine, "engine");
    CheckPointer(path, "path");
    CheckPointer(json, "json");
    *json = CopyJson(CallJson(*engine, path, body));
  });
}

litecache_status litecache_start(litecache_engine* engine, const char* path, const char* body,
                                 litecache_answer** answer) {
  return Guarded([&] {
    CheckPointer(engine, "engine");
    CheckPointer(path, "path");
    CheckPointer(answer, "answer");
    const ServedModel& model = *engine->model;
    *answer = new litecache_answer{Answer(*model.engine, ReadJob(model, path, body))};
  });
}

litecache_status litecache_next(litecache_answer* answer, double seconds, char** text) {
  auto state = Answer::State::kEnd;
  const litecache_status status = Guarded([&] {
    CheckPointer(answer, "answer");
    CheckPointer(text, "text");
    std::string part;
    state = answer->answer.Next(seconds, &part);
    if (state == Answer::State::kPart) *text = CopyText(part);
    if (state == Answer::State::kEnd) *text = nullptr;
    if (state == Answer::State::kTimeout) throw litecache::Error("nothing came in time");
    if (state == Answer::State::kCancelled) throw litecache::Error("the answer was cancelled");
  });
  if (state == Answer::State::kTimeout) return LITECACHE_TIMEOUT;
  if (state == Answer::State::kCancelled) return LITECACHE_CANCELLED;
  return status;
}

void litecache_cancel(litecache_answer* answer) {
  if (answer != nullptr) answer->answer.Cancel();
}

void litecache_release(litecache_answer* answer) { delete answer; }

litecache_status litecache_score(litecache_engine* engine, const int32_t* tokens, int64_t count,
                                 int64_t decode_from, const int64_t* positions,
                                 int64_t positions_count, float* logprobs, float* logits) {
  return Guarded([&] {
    CheckPointer(engine, "engine");
    if (count < 1) throw InvalidArgument("score: there are no tokens");
    CheckPointer(tokens, "tokens");
    litecache::ScoreRequest request{.tokens = {tokens, tokens + count}, .decode_from = decode_from};
    if (logits != nullptr && positions_count > 0) {
      CheckPointer(positions, "positions");
      request.positions.assign(positions, positions + positions_count);
    }
    const litecache::ScoreResult result = engine->model->engine->Score(request);
    if (logprobs != nullptr) {
      std::transform(result.token_nll.begin(), result.token_nll.end(), logprobs,
                     [](float nll) { return -nll; });
    }
    for (const auto& row : result.logits) logits = std::copy(row.begin(), row.end(), logits);
  });
}
