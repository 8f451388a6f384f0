// Results as lines of JSON.
#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "eval/run/result_fields.h"
#include "eval/run/results.h"
#include "io/json.h"

namespace litecache::eval {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson KvJson(const KvSums& kv) {
  auto json = OrderedJson::object();
  for (const auto& [name, field] : kKvFields) {
    if (kv.*field != 0) json[name] = kv.*field;  // most are zero, so lines stay short
  }
  return json;
}

OrderedJson DraftsJson(const DraftStats& drafts) {
  auto json = OrderedJson::object();
  for (const auto& [name, field] : kDraftFields) json[name] = drafts.*field;
  return json;
}

// Six digits: files of long windows would otherwise be twice as large.
OrderedJson Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  io::JsonLimits limits;
  return io::ParseLimitedJson<OrderedJson>(fmt::format("{:.6g}", value), &limits);
}

}  // namespace

OrderedJson ToJson(const RunInfo& info) {
  return {{"type", "run"},
          {"suite", info.suite},
          {"model", info.model},
          {"fingerprint", info.fingerprint},
          {"description", info.description},
          {"dtype", info.dtype},
          {"chat", info.chat},
          {"text", info.text}};
}

OrderedJson ConfigurationJson(const std::string& name, const OrderedJson& options) {
  return {{"type", "configuration"}, {"name", name}, {"options", options}};
}

OrderedJson ToJson(const Prediction& p) {
  OrderedJson json = {{"type", "prediction"},
                      {"key", p.key},
                      {"configuration", p.configuration},
                      {"task", p.task},
                      {"length", p.length},
                      {"id", p.id},
                      {"prediction", p.prediction},
                      {"references", p.references},
                      {"metric", p.metric},
                      {"score", p.score},
                      {"prompt_tokens", p.prompt_tokens},
                      {"generated_tokens", p.generated_tokens},
                      {"finish", p.finish},
                      {"queue_s", Rounded(p.queue_seconds)},
                      {"prefill_s", Rounded(p.prefill_seconds)},
                      {"decode_s", Rounded(p.decode_seconds)},
                      {"depths", p.depths}};
  if (p.drafts.drafted > 0) json["drafts"] = DraftsJson(p.drafts);
  json["kv"] = KvJson(p.kv);
  return json;
}

OrderedJson ToJson(const Window& w) {
  const auto rounded = [](const std::vector<float>& values) {
    auto array = OrderedJson::array();
    for (const float value : values) array.push_back(Rounded(double{value}));
    return array;
  };
  std::string same;
  for (const uint8_t top : w.same_top) same += top != 0 ? '1' : '0';
  auto prompt = OrderedJson::array();
  for (const Window::Bucket& bucket : w.prompt) {
    prompt.push_back(OrderedJson::array({bucket.end, bucket.tokens, Rounded(bucket.nll)}));
  }
  OrderedJson json = {
      {"type", "window"},   {"key", w.key},          {"configuration", w.configuration},
      {"length", w.length}, {"index", w.index},      {"end", w.end},
      {"first", w.first},   {"nll", rounded(w.nll)}, {"kl", rounded(w.kl)},
      {"same_top", same},   {"prompt", prompt},      {"seconds", Rounded(w.seconds)}};
  json["kv"] = KvJson(w.kv);
  return json;
}

OrderedJson ToJson(const HeadTable& table) {
  OrderedJson json = {{"type", "heads"},
                      {"configuration", table.configuration},
                      {"length", table.length},
                      {"layers", table.layers},
                      {"kv_heads", table.kv_heads}};
  for (const auto& [name, field] : kHeadCounts) {
    auto values = OrderedJson::array();
    for (const kv::HeadCounters& head : table.heads) values.push_back(head.*field);
    json[name] = std::move(values);
  }
  for (const auto& [name, field] : kHeadSums) {
    auto values = OrderedJson::array();
    for (const kv::HeadCounters& head : table.heads) values.push_back(Rounded(head.*field));
    json[name] = std::move(values);
  }
  return json;
}

}  // namespace litecache::eval
