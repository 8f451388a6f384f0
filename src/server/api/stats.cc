#include "server/api/stats.h"

#include <algorithm>

namespace litecache::server {
namespace {

Json KvTiersJson(const kv::TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}};
}

Json TrafficJson(const kv::Traffic& traffic) {
  return {{"rows", traffic.rows}, {"bytes", traffic.bytes}};
}

}  // namespace

// One array of [layers * kv_heads] per counter: a fifth of the bytes of one object per head.
Json HeadsJson(std::span<const kv::HeadCounters> heads, int64_t layers) {
  const auto column = [&](uint64_t kv::HeadCounters::*counter) {
    Json values = Json::array();
    for (const kv::HeadCounters& head : heads) values.push_back(head.*counter);
    return values;
  };
  return {{"layers", layers},
          {"kv_heads", static_cast<int64_t>(heads.size()) / layers},
          {"lookups", column(&kv::HeadCounters::lookups)},
          {"hits", column(&kv::HeadCounters::hits)},
          {"verified", column(&kv::HeadCounters::verified)},
          {"corrected", column(&kv::HeadCounters::corrected)},
          {"rows_selected", column(&kv::HeadCounters::rows_selected)},
          {"rows_moved", column(&kv::HeadCounters::rows_moved)}};
}

Json KvStatsJson(const kv::Stats& kv) {
  return {{"used", KvTiersJson(kv.used)},
          {"peak", KvTiersJson(kv.peak)},
          {"provided", KvTiersJson(kv.provided)},
          {"capacity", KvTiersJson(kv.capacity)},
          {"lookups", kv.lookups},
          {"hits", kv.hits},
          {"verified", kv.verified},
          {"corrected", kv.corrected},
          {"bytes_read", kv.bytes_read},
          {"moved",
           {{"miss", TrafficJson(kv.miss)},
            {"prefetch", TrafficJson(kv.prefetch)},
            {"fill", TrafficJson(kv.fill)},
            {"spill", TrafficJson(kv.spill)},
            {"prefill", TrafficJson(kv.prefill)},
            {"admit", TrafficJson(kv.admit)},
            {"stream", TrafficJson(kv.stream)},
            {"activations", TrafficJson(kv.activations)}}},
          {"rows_recomputed", kv.rows_recomputed}};
}

// Of the ranks or replicas; empty without.
Json PartsJson(const std::vector<PartStats>& parts) {
  Json json = Json::array();
  for (const PartStats& part : parts) {
    json.push_back({{"name", part.name},
                    {"running", part.running},
                    {"waiting", part.waiting},
                    {"kv", KvStatsJson(part.kv)}});
  }
  return json;
}

Json StatsJson(const ServedModel& model, double seconds, int64_t requests) {
  const EngineStats stats = model.engine->Stats();
  const int64_t waiting = std::min(stats.waiting, requests);
  return {{"time", seconds},
          {"requests",
           {{"running", requests - waiting}, {"waiting", waiting}, {"sequences", stats.running}}},
          {"tokens",
           {{"prompt", stats.prompt_tokens},
            {"generated", stats.generated_tokens},
            {"steps", stats.steps}}},
          {"drafts",
           {{"drafted", stats.drafts.drafted},
            {"accepted", stats.drafts.accepted},
            {"passes", stats.drafts.passes},
            {"draft_steps", stats.drafts.draft_steps}}},
          {"kv", KvStatsJson(stats.kv)},
          {"parts", PartsJson(stats.parts)},
          {"heads", stats.kv_heads.empty()
                        ? Json()
                        : HeadsJson(stats.kv_heads, model.engine->memory_plan().layers)}};
}

}  // namespace litecache::server
