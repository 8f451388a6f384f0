#include "bench/measurement_json.h"

#include <string>

namespace litecache::bench {

using Json = nlohmann::ordered_json;

double RowsMoved(const Measurement& m, int64_t steps) {
  return static_cast<double>(m.kv.miss.rows + m.kv.prefetch.rows + m.kv.stream.rows) /
         static_cast<double>(steps);
}

double HitRatio(const kv::Stats& stats) {
  return stats.lookups == 0 ? 0
                            : static_cast<double>(stats.hits) / static_cast<double>(stats.lookups);
}

double CorrectedRatio(const kv::Stats& stats) {
  return stats.verified == 0
             ? 0
             : static_cast<double>(stats.corrected) / static_cast<double>(stats.verified);
}

Json BreakdownJson(const Breakdown& breakdown) {
  Json json;
  for (size_t i = kSections; i-- > 0;) {
    json[std::string(litecache::Name(static_cast<Section>(i))) + "_ms"] =
        breakdown.seconds[i] * 1e3;
  }
  json["launch_ms"] = breakdown.launch * 1e3;
  json["marks"] = breakdown.marks;
  json["mark_us"] = breakdown.mark_seconds * 1e6;
  return json;
}

Json DecodeJson(const Measurement& m, int64_t steps, bool graphs) {
  Json json = {{"batch", m.batch},
               {"context", m.context},
               {"graph", graphs},
               {"ms_per_step", m.seconds * 1e3},
               {"slowest_ms", m.slowest * 1e3},
               {"spread", m.spread},
               {"tokens_per_s", static_cast<double>(m.batch) / m.seconds},
               {"bytes_per_step", m.cost.bytes},
               {"flops_per_step", m.cost.flops},
               {"gb_per_s", m.cost.bytes / m.seconds / 1e9},
               {"link_bytes_per_step", m.cost.link_bytes},
               {"link_gb_per_s", m.cost.link_bytes / m.seconds / 1e9},
               {"floor_ms", m.floor_seconds * 1e3},
               {"ratio_to_floor", m.seconds / m.floor_seconds},
               {"cpu_seconds_per_step", m.cpu_seconds},
               {"device_memory_bytes", m.device_memory}};
  const double moved = RowsMoved(m, steps);
  if (m.kv.lookups > 0) json["hit_ratio"] = HitRatio(m.kv);
  if (m.experts.lookups > 0) {
    json["expert_hit_ratio"] =
        static_cast<double>(m.experts.hits) / static_cast<double>(m.experts.lookups);
  }
  if (m.kv.verified > 0) json["corrected_ratio"] = CorrectedRatio(m.kv);
  if (moved > 0 || m.kv.lookups > 0) json["rows_moved_per_step"] = moved;
  if (m.kv.rows_recomputed > 0) {
    json["rows_recomputed_per_step"] =
        static_cast<double>(m.kv.rows_recomputed) / static_cast<double>(steps);
  }
  if (m.prompts_seconds > 0) {
    json["prompts_s"] = m.prompts_seconds;
    json["all_steps_s"] = m.steps_seconds;
  }
  if (m.breakdown.marks > 0) json["breakdown"] = BreakdownJson(m.breakdown);
  return json;
}

Json PrefillJson(const Measurement& m) {
  return {
      {"context", m.context},       {"tokens_per_s", static_cast<double>(m.context) / m.seconds},
      {"seconds", m.seconds},       {"spread", m.spread},
      {"flops", m.cost.flops},      {"gflop_per_s", m.cost.flops / m.seconds / 1e9},
      {"floor_s", m.floor_seconds}, {"ratio_to_floor", m.seconds / m.floor_seconds}};
}

}  // namespace litecache::bench
