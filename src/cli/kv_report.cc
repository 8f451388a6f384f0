#include "cli/kv_report.h"

#include <fmt/core.h>

#include <span>

#include "base/units.h"

namespace litecache::cli {
namespace {

using nlohmann::ordered_json;

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// For example "missed 1234 rows (5.6 MiB)".
std::string Moved(const kv::Traffic& traffic, const char* kind) {
  return fmt::format("{} {} rows ({})", kind, traffic.rows, FormatBytes(traffic.bytes));
}

ordered_json ToJson(const kv::Traffic& traffic) {
  return {{"rows", traffic.rows}, {"bytes", traffic.bytes}};
}

kv::HeadCounters Sum(std::span<const kv::HeadCounters> heads) {
  kv::HeadCounters sum;
  for (const kv::HeadCounters& head : heads) sum += head;
  return sum;
}

double PerLookup(double sum, uint64_t lookups) {
  return lookups == 0 ? 0 : sum / static_cast<double>(lookups);
}

ordered_json ToJson(const kv::HeadCounters& head) {
  ordered_json json = {{"lookups", head.lookups},
                       {"hit_ratio", HitRatio(head.hits, head.lookups)},
                       {"similarity", PerLookup(head.similarity, head.lookups)},
                       {"rows_selected", head.rows_selected},
                       {"rows_moved", head.rows_moved}};
  if (head.verified > 0) {
    json["verified"] = head.verified;
    json["corrected_ratio"] = HitRatio(head.corrected, head.verified);
    json["verified_similarity"] = PerLookup(head.verified_similarity, head.verified);
  }
  if (head.recall_held > 0 || head.recall_refreshes > 0) {
    json["recall_retrieved"] = PerLookup(head.recall_retrieved, head.recall_refreshes);
    json["recall_held"] = PerLookup(head.recall_held, head.lookups);
  }
  return json;
}

}  // namespace

double HitRatio(uint64_t hits, uint64_t lookups) {
  return lookups == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(lookups);
}

std::string KvReport::Text() const {
  const kv::Stats& kv = stats.kv;
  std::string text = fmt::format("KV cache ({}) ", plan.kv_policy);
  if (kv.capacity.host == 0) {
    text += fmt::format("{} of {}", FormatBytes(kv.peak.device), FormatBytes(kv.capacity.device));
  } else {
    text += fmt::format("device {} of {}, host {} of {}", FormatBytes(kv.peak.device),
                        FormatBytes(kv.capacity.device), FormatBytes(kv.peak.host),
                        FormatBytes(kv.capacity.host));
  }
  if (stats.kv_heads.empty()) {
    if (kv.capacity.host == 0) return text;
    text += "\nmoved: " + Moved(kv.stream, "stream");
    if (kv.activations.rows > 0) {
      text += ", " + Moved(kv.activations, "activations") +
              fmt::format(" for {} recomputed rows", kv.rows_recomputed);
    }
    return text + ", " + Moved(kv.spill, "spill") + ", " + Moved(kv.prefill, "prefill");
  }
  if (kv.lookups == 0) {
    text += "\nno lookups: every row so far fits the budget";
  } else {
    text += fmt::format("\nhit ratio {} of {} lookups, by layer",
                        Percent(HitRatio(kv.hits, kv.lookups)), kv.lookups);
    const auto layers = static_cast<size_t>(plan.layers);
    const size_t heads = stats.kv_heads.size() / layers;
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto sum = Sum(std::span(stats.kv_heads).subspan(layer * heads, heads));
      text +=
          sum.lookups == 0 ? " -" : fmt::format(" {:.0f}", 100 * HitRatio(sum.hits, sum.lookups));
    }
    const kv::HeadCounters sum = Sum(stats.kv_heads);
    if (sum.verified > 0) {
      text += fmt::format("; {} of {} lookups with a predicted query corrected",
                          Percent(HitRatio(sum.corrected, sum.verified)), sum.verified);
    }
    if (sum.recall_held > 0) {
      text += fmt::format("; recall {} retrieved, {} attended",
                          Percent(PerLookup(sum.recall_retrieved, sum.recall_refreshes)),
                          Percent(PerLookup(sum.recall_held, sum.lookups)));
    }
  }
  const std::string streamed = kv.stream.rows > 0 ? Moved(kv.stream, "stream") + ", " : "";
  const std::string admitted = kv.admit.rows > 0 ? Moved(kv.admit, "admit") + ", " : "";
  text +=
      fmt::format("\nmoved: {}{}{}, {}, {}, {}, {} | {} of {} heads resident | retriever {}",
                  streamed, admitted, Moved(kv.miss, "miss"), Moved(kv.prefetch, "prefetch"),
                  Moved(kv.spill, "spill"), Moved(kv.fill, "fill"), Moved(kv.prefill, "prefill"),
                  plan.resident_heads, plan.kv_heads, plan.retriever);
  if (!plan.transfer.empty()) text += " | transfer " + plan.transfer;
  return text;
}

ordered_json KvReport::Json() const {
  const kv::Stats& kv = stats.kv;
  ordered_json json = {{"policy", plan.kv_policy},
                       {"device_bytes", kv.peak.device},
                       {"device_capacity_bytes", kv.capacity.device},
                       {"host_bytes", kv.peak.host},
                       {"host_capacity_bytes", kv.capacity.host},
                       {"attention_bytes_read", kv.bytes_read}};
  if (kv.capacity.host > 0 || !stats.kv_heads.empty()) {
    json["moved"] = {{"miss", ToJson(kv.miss)},       {"prefetch", ToJson(kv.prefetch)},
                     {"spill", ToJson(kv.spill)},     {"fill", ToJson(kv.fill)},
                     {"prefill", ToJson(kv.prefill)}, {"admit", ToJson(kv.admit)},
                     {"stream", ToJson(kv.stream)},   {"activations", ToJson(kv.activations)}};
    json["rows_recomputed"] = kv.rows_recomputed;
  }
  if (stats.kv_heads.empty()) return json;
  json["retriever"] = plan.retriever;
  if (!plan.transfer.empty()) json["transfer"] = plan.transfer;
  json["heads"] = plan.kv_heads;
  json["resident_heads"] = plan.resident_heads;
  json["lookups"] = kv.lookups;
  json["hit_ratio"] = HitRatio(kv.hits, kv.lookups);
  json["all_heads"] = ToJson(Sum(stats.kv_heads));
  json["layers"] = ordered_json::array();
  const auto layers = static_cast<size_t>(plan.layers);
  const size_t heads = stats.kv_heads.size() / layers;
  for (size_t layer = 0; layer < layers; ++layer) {
    const auto of_layer = std::span(stats.kv_heads).subspan(layer * heads, heads);
    ordered_json entry = ToJson(Sum(of_layer));
    entry["heads"] = ordered_json::array();
    for (const kv::HeadCounters& head : of_layer) entry["heads"].push_back(ToJson(head));
    json["layers"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace litecache::cli
