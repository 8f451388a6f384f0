// The KV cache's options, one row each.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/option_makers.h"
#include "kv/api/policy_registry.h"
#include "kv/heads/prediction_sources.h"
#include "litecache/kv_options.h"

namespace litecache {
namespace {

using namespace option_rows;  // NOLINT(google-build-using-namespace): the functions that make rows
using O = KvOptions;
using Rows = std::vector<Option<KvOptions>>;

constexpr double kMost = 1 << 20;
constexpr double kMostTokens = 1 << 30;

Kind<std::string> Policy() {
  Kind<std::string> kind = Text("NAME");
  kind.values = fmt::format("auto, {}", fmt::join(KvPolicies(), ", "));
  kind.read = [](const std::string& text, std::string_view who) {
    const std::string why = text == "auto" ? "" : kv::WhyNoPolicy(text);
    if (!why.empty()) throw InvalidArgument("{}: {}", who, why);
    return text;
  };
  return kind;
}

Kind<KvBudget> Budget() {
  return {"SHARE|ROWS", "a share such as 10%, 10%@8k, rows such as 2048 or 4k, or auto",
          KvBudget::Parse, [](const KvBudget& budget) { return budget.ToString(); }};
}

Kind<std::string> ResidentHeads() {
  Kind<std::string> kind = Text("N|NAME");
  kind.values = "auto, a number, formula, all, none";
  kind.read = [](const std::string& text, std::string_view who) {
    constexpr size_t kMostDigits = 9;
    const bool digits = !text.empty() && text.size() <= kMostDigits &&
                        text.find_first_not_of("0123456789") == std::string::npos;
    for (const char* name : {"auto", "formula", "all", "none"}) {
      if (text == name) return text;
    }
    if (digits) return text;
    throw InvalidArgument("{}: '{}' is not auto, formula, all, none or a number", who, text);
  };
  return kind;
}

Kind<std::string> Prefetch() {
  Kind<std::string> kind = Text("LAYERS");
  kind.values = "auto, 0 to 4, off, on, or a list such as -,-,-,2,2,3";
  kind.read = [](const std::string& text, std::string_view who) {
    kv::CheckPrefetch(text, who);
    return text;
  };
  return kind;
}

Kind<int64_t> HataBits() {
  const Kind<std::string> choice = Choice({"0", "128", "256"}, "N");
  return {choice.type, choice.values,
          [choice](const std::string& text, std::string_view who) -> int64_t {
            return std::stoi(choice.read(text, who));
          },
          [](int64_t bits) { return fmt::format("{}", bits); }};
}

// Text such as "full: every row on the device; litecache: ...".
std::string PolicySummaries() {
  std::string text;
  for (const kv::Policy& policy : kv::Policies()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", policy.name, policy.summary);
  }
  return text;
}

Rows CacheRows() {
  return {
      Row("policy", &O::policy, Policy(), "How the KV cache is kept. " + PolicySummaries(),
          {.flag = "--kv-policy", .common = true}),
      Row("budget", &O::budget, Budget(),
          "Rows that a head keeps on the device: a share of the context (10%), a share of 8k "
          "tokens that grows with the square root of the context (10%@8k), a number (2048), or "
          "auto: as many as it needs",
          {.flag = "--kv-budget", .policies = {"litecache"}, .common = true}),
      Row("device_memory", &O::device_memory, Bytes(),
          "Hard limit of the memory used on the device, by weights, buffers and KV rows together; "
          "0: derived from --memory",
          {.common = true}),
      Row("host_memory", &O::host_memory, Bytes(),
          "Hard limit of the memory for KV rows on the host; 0: derived from --memory",
          {.policies = {"litecache", "kvpr"}}),
      Row("profile", &O::profile, Text("FILE"),
          "The file that `litecache profile` wrote; auto: litecache-profile.safetensors in the "
          "model's directory, where it exists; none: no profile",
          {.policies = {"litecache"}}),
      Row("sink_tokens", &O::sink_tokens, Tokens(0, kMost),
          "The first tokens, which are always attended",
          {.flag = "--sink", .policies = {"litecache", "streaming"}}),
      Row("recent_tokens", &O::recent_tokens, Tokens(1, kMost),
          "The last tokens, which are always attended",
          {.flag = "--recent", .policies = {"litecache", "streaming"}}),
      Row("prefill", &O::prefill, Choice({"auto", "dense", "sparse"}),
          "How prompts are attended. dense: every row; sparse: the blocks of rows that have most "
          "of "
          "the attention, by an estimate, which long prompts need a fraction of the time for; "
          "auto: "
          "sparse from 32k tokens on. The end of a prompt and the answer see all rows",
          {.policies = {"full", "litecache"}}),
      Row("prefill_mass", &O::prefill_mass, Real(0.01, 1),
          "With sparse prefill: the share of the estimated attention that the blocks have together",
          {.policies = {"full", "litecache"}}),
      Row("measure_recall", &O::measure_recall, Flag(),
          "Compare every selection of rows with the exact one and report the recall (slow)",
          {.policies = {"litecache"}}),
  };
}

Rows ReuseRows() {
  return {
      Row("carry_tokens", &O::carry_tokens, Tokens(0, kMost),
          "Tokens that have left the recent window stay attended until the head's next refresh; "
          "this many at most",
          {.flag = "--carry"}),
      Row("thresholds", &O::thresholds, Choice({"auto", "fitted", "importance", "fixed"}),
          "How reuse thresholds are determined. importance: from "
          "--eta, --p and the profile; fitted: from --keep and the profile; fixed: --eta for all "
          "heads; auto: importance where heads differ in it, else fitted, else fixed"),
      Row("keep", &O::keep, Share(),
          "With fitted thresholds: the share of the attention mass of a fresh selection that "
          "reused rows have to keep"),
      Row("eta", &O::eta, Real(-1, 1),
          "Upper bound of the thresholds on the cosine of two queries; 1: refresh at every step, "
          "-1: never refresh"),
      Row("p", &O::p, Real(0, 1000), "Exponent of a head's importance in its threshold"),
      Row("aggregation", &O::aggregation, Choice({"importance", "harmonic", "mean", "min"}),
          "How the similarities of a group's query heads are combined: harmonic mean weighted by "
          "importance, harmonic mean, mean or minimum"),
      Row("slots", &O::slots, Real(1, 1000),
          "Slots of a head, as a multiple of its budget; rows that are no longer selected stay in "
          "them until the slot is needed"),
      Row("delta_update", &O::delta_update, Flag(),
          "Move only those selected rows that the device lacks", {.flag = "--delta"}),
      Row("prefetch", &O::prefetch, Prefetch(),
          "Select and fetch a layer's rows this many layers ahead, with a predicted query; auto: "
          "on a GPU up to 2, where predictions are good, which a short run of the model tells at "
          "start; on a CPU, where nothing overlaps, 0. A list has for every layer the layer whose "
          "input predicts it, or '-'"),
      Row("verify_predictions", &O::verify_predictions, Flag(),
          "Look rows chosen with a predicted query up again with the actual query, and choose anew "
          "where that misses",
          {.flag = "--verify"}),
      Row("prediction_eta", &O::prediction_eta, Real(-1, 1),
          "Rows chosen with this step's prediction are attended only if its cosine with the actual "
          "query is above this, and above the head's threshold less --prediction-margin"),
      Row("prediction_margin", &O::prediction_margin, Real(0, 1),
          "By how much the threshold of a prediction's check is below the head's, so that few "
          "checks miss"),
  };
}

Rows ResidentRows() {
  return {
      Row("resident_heads", &O::resident_heads, ResidentHeads(),
          "Heads whose rows all stay on the device, besides layer 0: a number (those that reuse "
          "least come first), formula (computed from the speed of the link and of a layer), all "
          "(of which all but those of layer 0 select), none; auto: all where a GPU has room for "
          "the whole context of all requests, else none"),
      Row("resident_first_layer", &O::resident_first_layer, Flag(),
          "Keep layer 0 on the device, and with --prefetch auto all layers that are not predicted"),
      Row("resident_full_attention", &O::resident_full_attention, Flag(),
          "Resident heads attend all their rows rather than a selection",
          {.flag = "--resident-full"}),
      Row("resident_whole", &O::resident_whole, Whole(0, int64_t{1} << 40),
          "Resident heads attend all their rows in steps of up to so many tokens of all requests "
          "together, for which choosing takes longer; --resident-heads auto takes 65536"),
      Row("dense_layers", &O::dense_layers, Whole(0, kMost),
          "First layers that stay on the device and attend every row"),
      Row("epsilon", &O::epsilon, Real(-2, 2),
          "Tolerance in the measure of how hard a head is to reuse"),
  };
}

Rows RetrieverRows() {
  return {
      Row("retriever", &O::retriever,
          Choice({"auto", "exact", "hata", "keys", "keys2", "quest", "loki"}),
          "What finds the rows with the highest scores; keys, keys2: the keys in 4 or 2 bits a "
          "channel; auto: keys"),
      Row("hata_bits", &O::hata_bits, HataBits(),
          "Bits of a key's hash code; 0: as many as the profile has, or 256"),
      Row("hata_norms", &O::hata_norms, Flag(), "Weight hata's scores by the norms of the keys"),
      Row("hata_group", &O::hata_group, Choice({"auto", "sum", "softmax"}),
          "How the scores of a group's query heads are combined. sum: of the bits that differ; "
          "softmax: of the estimated products; auto: softmax where --hata-norms is on"),
      Row("loki_rank", &O::loki_rank, Whole(0, kMost),
          "Principal components that loki computes scores with; 0: head_dim / 4"),
  };
}

Rows TransferRows() {
  return {
      Row("host_rows", &O::host_rows, Choice({"auto", "full", "fp8", "int8", "int4"}, "TYPE"),
          "Type of the rows on the host. full: as on the device; int4: in groups of 64 values; "
          "auto: for litecache int8 on a GPU with bf16 rows, otherwise full",
          {.policies = {"litecache", "kvpr"}}),
      Row("transfer", &O::transfer, Choice({"auto", "gpu-pull", "cpu-push", "copy"}),
          "How rows are transferred to a GPU. gpu-pull: kernels read them; cpu-push: CPU threads "
          "write those "
          "that the GPU asks for; copy: CPU threads gather them and the copy engine brings them; "
          "auto: gpu-pull",
          {.policies = {"litecache"}}),
      Row("transfer_threads", &O::transfer_threads, Whole(0, 1024),
          "Threads that gather rows for cpu-push and copy; 0: the cores but one, at most 16",
          {.policies = {"litecache"}}),
      Row("batch_groups", &O::batch_groups, Whole(1, 1 << 16),
          "On a GPU the sequences of a step pass through each layer in this many groups, whose "
          "rows travel one after another; 1: all together",
          {.policies = {"kvpr"}}),
  };
}

std::span<const Option<KvprOptions>> KvprRows() {
  static const auto rows = std::to_array<Option<KvprOptions>>({
      Row("split", &KvprOptions::split, Tokens(-1, kMostTokens),
          "The first tokens, whose rows are recomputed from activations while the others travel; "
          "-1: as many as is fastest by the measured speeds"),
      Row("chunked", &KvprOptions::chunked, Flag(),
          "Recompute while the activations are still coming in; off: equation 11 of the KVPR "
          "paper"),
  });
  return rows;
}

Rows MakeTable() {
  Rows table;
  Add(&table, "KV cache", CacheRows());
  Add(&table, "Reuse of selected rows", ReuseRows(), {"litecache"});
  Add(&table, "Resident heads", ResidentRows(), {"litecache"});
  Add(&table, "Retriever", RetrieverRows(), {"litecache"});
  Add(&table, "Rows on the host", TransferRows());
  Add(&table, "KV policy kvpr",
      Part<O, KvprOptions>(
          KvprRows(), "kvpr", [](auto& o) -> auto& { return o.kvpr; }),
      {"kvpr"});
  for (const kv::Policy& policy : kv::Policies()) {
    for (const std::string& name : policy.options) {
      const auto row = std::find_if(table.begin(), table.end(),
                                    [&](const Option<O>& option) { return option.name == name; });
      LC_CHECK(row != table.end(), "policy {}: no option {}", policy.name, name);
      row->policies.push_back(policy.name);
    }
    Add(&table, "KV policy " + policy.name, policy.settings, {policy.name});
  }
  return table;
}

}  // namespace

std::span<const Option<KvOptions>> KvOptionTable() {
  static const Rows table = MakeTable();
  return table;
}

}  // namespace litecache
