#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/units.h"
#include "kv/policy_registry.h"
#include "litecache/kv_options.h"
#include "ops/reuse/slot_windows.h"

namespace litecache {
namespace {

void CheckOneOf(std::string_view field, const std::string& value,
                std::span<const std::string_view> names) {
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  std::string list;
  for (std::string_view name : names) {
    if (!list.empty()) list += ", ";
    list += name;
  }
  throw InvalidArgument("KV options: {} = '{}' is not one of {}", field, value, list);
}

void CheckOneOf(std::string_view field, const std::string& value,
                std::initializer_list<std::string_view> names) {
  CheckOneOf(field, value, std::span(names.begin(), names.size()));
}

void CheckRange(std::string_view field, double value, double low, double high) {
  // NaN fails, too.
  if (!(value >= low && value <= high)) {
    throw InvalidArgument("KV options: {} = {} is not between {} and {}", field, value, low, high);
  }
}

void ValidateRetroInfer(const KvOptions& options) {
  const RetroInferOptions& o = options.retroinfer;
  CheckRange("retroinfer.cluster_tokens", static_cast<double>(o.cluster_tokens), 1, 1 << 20);
  CheckRange("retroinfer.segment_tokens", static_cast<double>(o.segment_tokens), 8, 1 << 30);
  CheckRange("retroinfer.update_tokens", static_cast<double>(o.update_tokens), 8, 1 << 20);
  CheckRange("retroinfer.iterations", static_cast<double>(o.iterations), 1, 1000);
  CheckRange("retroinfer.retrieval", o.retrieval, 0, 1);
  CheckRange("retroinfer.estimation", o.estimation, 0, 1);
  CheckRange("retroinfer.block_tokens", static_cast<double>(o.block_tokens), 1, 1 << 20);
  CheckRange("retroinfer.cache", o.cache, 0, 1000);
  if (options.policy == "retroinfer" && options.measure_recall) {
    throw InvalidArgument(
        "KV options: measure_recall compares rows that a retriever selects, and policy retroinfer "
        "selects clusters; turn it off");
  }
}

}  // namespace

KvBudget KvBudget::Parse(const std::string& text) {
  constexpr std::string_view kWhat = "KV budget";
  KvBudget budget;
  const bool percent = !text.empty() && text.back() == '%';
  if (percent || text.find('.') != std::string::npos) {
    size_t used = 0;
    double number = 0;
    try {
      number = std::stod(text, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    const double share = percent ? number / 100 : number;
    if (used == 0 || used + (percent ? 1 : 0) != text.size() || !(share > 0 && share <= 1)) {
      throw InvalidArgument(
          "{}: '{}' is not a share above 0% and up to 100%; write e.g. 10%, 0.1 or 2048", kWhat,
          text);
    }
    budget.share = share;
    return budget;
  }
  budget.tokens = ParseTokens(text, "KV budget (a share such as 10%, or rows)");
  if (budget.tokens < 1) {
    throw InvalidArgument("{}: '{}' keeps no row; write e.g. 10% or 2048", kWhat, text);
  }
  return budget;
}

int64_t KvBudget::RowsFor(int64_t context) const { return ops::BudgetRows(share, tokens, context); }

std::string KvBudget::ToString() const {
  return tokens > 0 ? fmt::format("{}", tokens) : fmt::format("{}%", share * 100);
}

void KvOptions::Validate() const {
  constexpr double kMaxTokens = 1 << 30;
  kv::FindPolicy(policy);
  if (budget.tokens == 0 && !(budget.share > 0 && budget.share <= 1)) {
    throw InvalidArgument("KV options: budget = {} is not above 0% and up to 100%",
                          budget.ToString());
  }
  CheckRange("budget", static_cast<double>(budget.tokens), 0, kMaxTokens);
  CheckRange("sink_tokens", static_cast<double>(sink_tokens), 0, 1 << 20);
  CheckRange("recent_tokens", static_cast<double>(recent_tokens), 1, 1 << 20);
  CheckRange("carry_tokens", static_cast<double>(carry_tokens), 0, 1 << 20);
  CheckOneOf("thresholds", thresholds, {"auto", "fitted", "importance", "fixed"});
  CheckRange("eta", eta, -1, 1);
  CheckRange("p", p, 0, 1000);
  CheckRange("keep", keep, 0, 1);
  CheckOneOf("aggregation", aggregation, {"importance", "harmonic", "mean", "min"});
  if (resident_heads != "formula" && resident_heads != "none") {
    const bool digits = !resident_heads.empty() && resident_heads.size() <= 9 &&
                        std::all_of(resident_heads.begin(), resident_heads.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) {
      throw InvalidArgument("KV options: resident_heads = '{}' is not formula, none or a number",
                            resident_heads);
    }
  }
  CheckRange("epsilon", epsilon, -2, 2);
  CheckRange("dense_layers", static_cast<double>(dense_layers), 0, 1 << 20);
  CheckOneOf("prefetch", prefetch, {"0", "1", "2", "3", "4", "auto", "off", "on"});
  CheckOneOf("retriever", retriever, {"auto", "exact", "hata", "quest", "loki"});
  if (hata_bits != 0 && hata_bits != 128 && hata_bits != 256) {
    throw InvalidArgument("KV options: hata_bits = {} is not 128 or 256, or 0 to choose",
                          hata_bits);
  }
  CheckOneOf("hata_group", hata_group, {"auto", "sum", "softmax"});
  if (hata_group == "softmax" && !hata_norms) {
    throw InvalidArgument(
        "KV options: hata_group = softmax estimates products, which takes the keys' norms; use "
        "hata_norms = on or hata_group = sum");
  }
  CheckRange("loki_rank", loki_rank, 0, 1 << 20);
  CheckRange("slots", slots, 1, 1000);
  if (slots > 1 && !delta_update) {
    throw InvalidArgument(
        "KV options: slots = {} keeps rows for delta updates, and delta_update is off; use slots = "
        "1",
        slots);
  }
  CheckRange("batch_groups", static_cast<double>(batch_groups), 1, 1 << 16);
  CheckRange("flexgen.device_share", flexgen.device_share, 0, 1);
  CheckRange("kvpr.split", static_cast<double>(kvpr.split), -1, kMaxTokens);
  CheckOneOf("transfer", transfer, {"auto", "gpu-pull", "cpu-push", "copy"});
  CheckRange("transfer_threads", transfer_threads, 0, 1024);
  CheckOneOf("host_rows", host_rows, {"auto", "fp8", "int8", "int4"});
  ValidateRetroInfer(*this);
  CheckRange("infinigen.partial", infinigen.partial, 0, 1);
  CheckRange("infinigen.alpha", infinigen.alpha, 0, 1e6);
  CheckRange("infinigen.cap", infinigen.cap, 0, 1);
  // Nothing is computed before layer 0 that its rows could be predicted from.
  CheckRange("infinigen.dense_layers", static_cast<double>(infinigen.dense_layers), 1, 1 << 20);
  CheckRange("pqcache.sink_tokens", static_cast<double>(pqcache.sink_tokens), 0, 1 << 20);
  CheckRange("pqcache.share", pqcache.share, 0, 1);
  CheckRange("pqcache.subspaces", static_cast<double>(pqcache.subspaces), 1, 64);
  CheckRange("pqcache.bits", pqcache.bits, 1, 8);
  CheckRange("pqcache.iterations", static_cast<double>(pqcache.iterations), 0, 1 << 20);
  CheckRange("pqcache.cache_tokens", static_cast<double>(pqcache.cache_tokens), 0, 1 << 30);
  CheckRange("pqcache.block_tokens", static_cast<double>(pqcache.block_tokens), 1, 1 << 20);
}

}  // namespace litecache
