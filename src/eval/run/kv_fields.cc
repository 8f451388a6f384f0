#include "eval/run/kv_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace litecache::eval {
namespace {

template <typename T>
T ParseNumber(const std::string& text, std::string_view name) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    throw InvalidArgument("{}: '{}' is not a {}number", name, text,
                          std::is_floating_point_v<T> ? "" : "whole ");
  }
  return value;
}

std::string Print(const std::string& value) { return value; }
std::string Print(bool value) { return value ? "on" : "off"; }
std::string Print(double value) { return fmt::format("{}", value); }
std::string Print(int value) { return fmt::format("{}", value); }
std::string Print(int64_t value) { return fmt::format("{}", value); }
std::string Print(uint64_t value) { return fmt::format("{}", value); }
std::string Print(const KvBudget& value) { return value.ToString(); }

// One overload a type of member; int64_t members count tokens, uint64_t members bytes.
void Parse(const std::string& text, std::string_view, std::string* value) { *value = text; }
void Parse(const std::string& text, std::string_view name, bool* value) {
  *value = text == "on" || text == "true" || text == "1";
  if (!*value && text != "off" && text != "false" && text != "0") {
    throw InvalidArgument("{}: '{}' is neither on nor off", name, text);
  }
}
void Parse(const std::string& text, std::string_view name, double* value) {
  *value = ParseNumber<double>(text, name);
}
void Parse(const std::string& text, std::string_view name, int* value) {
  *value = ParseNumber<int>(text, name);
}
void Parse(const std::string& text, std::string_view name, int64_t* value) {
  *value = text == "-1" ? -1 : ParseTokens(text, name);  // -1: as many as the policy says
}
void Parse(const std::string& text, std::string_view name, uint64_t* value) {
  *value = ParseBytes(text, name);
}
void Parse(const std::string& text, std::string_view, KvBudget* value) {
  *value = KvBudget::Parse(text);
}

#define LC_KV_FIELD(member)                                                \
  KvField {                                                                \
#member, [](const KvOptions& options) { return Print(options.member); }, \
        [](KvOptions& options, const std::string& text) {             \
          Parse(text, #member, &options.member);                      \
        } \
  }

const auto kFields = std::to_array<KvField>({
    LC_KV_FIELD(policy),
    LC_KV_FIELD(budget),
    LC_KV_FIELD(sink_tokens),
    LC_KV_FIELD(recent_tokens),
    LC_KV_FIELD(carry_tokens),
    LC_KV_FIELD(thresholds),
    LC_KV_FIELD(eta),
    LC_KV_FIELD(p),
    LC_KV_FIELD(keep),
    LC_KV_FIELD(aggregation),
    LC_KV_FIELD(resident_heads),
    LC_KV_FIELD(resident_first_layer),
    LC_KV_FIELD(resident_full_attention),
    LC_KV_FIELD(epsilon),
    LC_KV_FIELD(dense_layers),
    LC_KV_FIELD(prefetch),
    LC_KV_FIELD(retriever),
    LC_KV_FIELD(hata_bits),
    LC_KV_FIELD(hata_norms),
    LC_KV_FIELD(hata_group),
    LC_KV_FIELD(loki_rank),
    LC_KV_FIELD(delta_update),
    LC_KV_FIELD(slots),
    LC_KV_FIELD(host_rows),
    LC_KV_FIELD(transfer),
    LC_KV_FIELD(transfer_threads),
    LC_KV_FIELD(flexgen.device_share),
    LC_KV_FIELD(infinigen.partial),
    LC_KV_FIELD(infinigen.alpha),
    LC_KV_FIELD(infinigen.cap),
    LC_KV_FIELD(infinigen.dense_layers),
    LC_KV_FIELD(kvpr.split),
    LC_KV_FIELD(kvpr.chunked),
    LC_KV_FIELD(retroinfer.cluster_tokens),
    LC_KV_FIELD(retroinfer.segment_tokens),
    LC_KV_FIELD(retroinfer.update_tokens),
    LC_KV_FIELD(retroinfer.iterations),
    LC_KV_FIELD(retroinfer.retrieval),
    LC_KV_FIELD(retroinfer.estimation),
    LC_KV_FIELD(retroinfer.block_tokens),
    LC_KV_FIELD(retroinfer.cache),
    LC_KV_FIELD(pqcache.sink_tokens),
    LC_KV_FIELD(pqcache.share),
    LC_KV_FIELD(pqcache.subspaces),
    LC_KV_FIELD(pqcache.bits),
    LC_KV_FIELD(pqcache.iterations),
    LC_KV_FIELD(pqcache.cache_tokens),
    LC_KV_FIELD(pqcache.block_tokens),
    LC_KV_FIELD(measure_recall),
    LC_KV_FIELD(profile),
    LC_KV_FIELD(device_memory),
    LC_KV_FIELD(host_memory),
});

#undef LC_KV_FIELD

// Flags that are not spelled like their member.
constexpr auto kAliases = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"kv_policy", "policy"},
    {"kv_budget", "budget"},
    {"sink", "sink_tokens"},
    {"recent", "recent_tokens"},
    {"carry", "carry_tokens"},
    {"resident_full", "resident_full_attention"},
    {"delta", "delta_update"},
    {"flexgen_device_share", "flexgen.device_share"},
    {"kvpr_split", "kvpr.split"},
    {"kvpr_chunked", "kvpr.chunked"},
    {"retroinfer_cluster", "retroinfer.cluster_tokens"},
    {"retroinfer_segment", "retroinfer.segment_tokens"},
    {"retroinfer_update", "retroinfer.update_tokens"},
    {"retroinfer_iterations", "retroinfer.iterations"},
    {"retroinfer_retrieval", "retroinfer.retrieval"},
    {"retroinfer_estimation", "retroinfer.estimation"},
    {"retroinfer_block", "retroinfer.block_tokens"},
    {"retroinfer_cache", "retroinfer.cache"},
});

}  // namespace

std::span<const KvField> KvFields() { return kFields; }

const KvField& FindKvField(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  for (const auto& [alias, member] : kAliases) {
    if (wanted == alias) wanted = member;
  }
  const auto found = std::find_if(kFields.begin(), kFields.end(),
                                  [&](const KvField& field) { return field.name == wanted; });
  if (found != kFields.end()) return *found;
  std::string names;
  for (const KvField& field : kFields)
    names += (names.empty() ? "" : ", ") + std::string(field.name);
  throw InvalidArgument("'{}' is not an option of the KV cache; there are: {}", name, names);
}

}  // namespace litecache::eval
