#include "server/api/information.h"

#include <algorithm>

#include "model/config.h"
#include "server/api/chat_prompt.h"
#include "server/api/fields.h"
#include "server/api/tools.h"

namespace litecache::server {
namespace {

Json TiersJson(const kv::TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}};
}

Json SamplingJson(const SamplingParams& params) {
  return {{"temperature", params.temperature},
          {"top_k", params.top_k},
          {"top_p", params.top_p},
          {"min_p", params.min_p},
          {"repetition_penalty", params.repetition_penalty}};
}

// Messages and the tools that they may call; nothing else may be left in `fields`.
ChatPromptFields ReadConversation(Fields& fields, const ServedModel& model) {
  ToolUse tools = ReadTools(fields, false);
  ChatPromptFields prompt = ReadChatPrompt(fields, model);
  fields.Finish();
  Request unused;
  ApplyTools(model, &prompt, &tools, &unused);
  return prompt;
}

}  // namespace

Json ModelJson(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "litecache"},
          {"root", model.name()},
          {"max_model_len", model.engine->memory_plan().largest_context}};
}

Json PropsJson(const ServedModel& model) {
  const Engine& engine = *model.engine;
  const MemoryPlan& plan = engine.memory_plan();
  Json memory = {{"total", plan.total},
                 {"device_total", plan.device_total},
                 {"host_total", plan.host_total},
                 {"weights", plan.weights},
                 {"host_weights", plan.host_weights},
                 {"weights_mapped", plan.weights_mapped},
                 {"buffers", plan.buffers},
                 {"draft", plan.draft.total()},
                 {"kv", TiersJson(plan.kv)},
                 {"kv_per_token", plan.kv_per_token},
                 {"kv_largest_context", TiersJson(plan.kv_largest)},
                 {"largest_context", plan.largest_context},
                 {"context_limit", plan.context_limit},
                 {"max_batch", plan.max_batch}};
  Json kv = {{"policy", plan.kv_policy},
             {"retriever", plan.retriever.empty() ? Json() : Json(plan.retriever)},
             {"transfer", plan.transfer.empty() ? Json() : Json(plan.transfer)},
             {"layers", plan.layers},
             {"kv_heads", plan.kv_heads},
             {"resident_heads", plan.resident_heads},
             {"notes", engine.kv_notes()}};
  const RequestLimits& limits = model.limits;
  return {{"model", model.name()},
          {"names", model.names},
          {"description", engine.Description()},
          {"version", LC_VERSION},
          {"vocab_size", engine.config().vocab},
          {"chat_template", model.chat ? Json(model.chat->chat_template().Source()) : Json()},
          {"default_sampling", SamplingJson(engine.default_sampling())},
          {"kv", std::move(kv)},
          {"memory", std::move(memory)},
          {"limits",
           {{"max_tokens", limits.max_tokens},
            {"default_max_tokens", limits.default_max_tokens},
            {"max_prompt", limits.max_prompt},
            {"max_samples", limits.max_samples}}}};
}

Json SlotsJson(const ServedModel& model) {
  const int64_t running = model.engine->Stats().running;
  Json slots = Json::array();
  for (int64_t i = 0; i < model.limits.max_batch; ++i) {
    slots.push_back({{"id", i},
                     {"n_ctx", model.engine->memory_plan().largest_context},
                     {"speculative", false},
                     {"is_processing", i < running}});
  }
  return slots;
}

Json ApplyTemplateJson(const Json& body, const ServedModel& model) {
  Fields fields(body);
  fields.Ignore({"model"});
  return {{"prompt", RenderChatPrompt(ReadConversation(fields, model), model).text}};
}

Json TokenizeJson(const Json& body, const ServedModel& model) {
  Fields fields(body);
  fields.Ignore({"model"});
  fields.RefuseUnless("with_pieces", {false}, "send 'return_token_strs'");
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  std::vector<int32_t> ids;
  if (fields.Has("messages")) {
    ids = EncodeChatPrompt(ReadConversation(fields, model), model);
  } else {
    auto text = fields.String("prompt");
    if (!text) text = fields.String("content");
    if (!text) {
      throw BadRequest("prompt", "'prompt' is missing: send a text, or a chat as 'messages'");
    }
    tokenizer::EncodeOptions options;
    auto add_special = fields.Bool("add_special_tokens");
    if (!add_special) add_special = fields.Bool("add_special");
    options.add_special_tokens = add_special.value_or(true);
    options.parse_special = fields.Bool("parse_special").value_or(true);
    fields.Finish();
    ids = model.tokenizer().Encode(*text, options);
  }
  Json result = {{"count", ids.size()},
                 {"max_model_len", model.engine->memory_plan().largest_context},
                 {"tokens", ids}};
  if (strings) {
    Json texts = Json::array();
    for (const int32_t id : ids) texts.push_back(TokenString(model.tokenizer(), id));
    result["token_strs"] = std::move(texts);
  }
  return result;
}

Json DetokenizeJson(const Json& body, const ServedModel& model) {
  Fields fields(body);
  fields.Ignore({"model"});
  const auto ids = fields.Ids("tokens");
  if (!ids) throw BadRequest("tokens", "'tokens' is missing: send an array of token ids");
  const bool skip_special = fields.Bool("skip_special_tokens").value_or(false);
  fields.Finish();
  const int64_t vocab =
      std::max<int64_t>(model.engine->config().vocab, model.tokenizer().vocab_size());
  for (const int32_t id : *ids) {
    if (id >= vocab) {
      throw BadRequest("tokens", "token id {} is out of range: the vocabulary ends at {}", id,
                       vocab - 1);
    }
  }
  return {{"prompt", model.tokenizer().Decode(*ids, skip_special)}};
}

}  // namespace litecache::server
