#include "cli/kv_flags.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/logging.h"
#include "cli/kv_policy_flags.h"
#include "kv/policy_registry.h"

namespace litecache::cli {
namespace {

constexpr const char* kCache = "KV cache";
constexpr const char* kOfPolicy = "KV policy ";  // and its name
constexpr const char* kAdvanced = "KV policy litecache";

// "full: every row on the device; litecache: ...", of all policies there are.
std::string PolicyHelp() {
  std::string help;
  for (const kv::Policy& policy : kv::Policies()) {
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", policy.name, policy.summary);
  }
  return help;
}

}  // namespace

void KvFlags::Declare(CLI::App& app) {
  app_ = &app;
  KvOptions& o = options;
  const auto one_of = [](std::initializer_list<std::string> names) {
    return CLI::IsMember(std::vector<std::string>(names)).description("");
  };
  app.add_option("--kv-policy", o.policy, PolicyHelp())
      ->type_name("NAME")
      ->check(CLI::Validator([](std::string& name) { return kv::WhyNoPolicy(name); }, ""))
      ->capture_default_str()
      ->group(kCache);
  app.add_option("--kv-budget", budget,
                 "Rows a head keeps on the device: a share of the context (10%) or a number (2048)")
      ->type_name("SHARE|ROWS")
      ->capture_default_str()
      ->group(kCache);
  app.add_option("--device-memory", device_memory,
                 "Hard cap of the device tier: weights, buffers, cached and resident rows, "
                 "retriever metadata; default: from --memory")
      ->type_name("SIZE")
      ->group(kCache);
  app.add_option("--host-memory", host_memory, "Hard cap of the host store; default: from --memory")
      ->type_name("SIZE")
      ->group(kCache);
  app.add_option("--profile", o.profile,
                 "What `litecache profile` wrote; auto: litecache-profile.safetensors in the "
                 "model's directory, if there; none")
      ->type_name("FILE")
      ->capture_default_str()
      ->group(kCache);
  app.add_option("--retriever", o.retriever,
                 "Finds a query's top rows: exact, hata, quest, loki; auto: hata")
      ->type_name("NAME")
      ->check(one_of({"auto", "exact", "hata", "quest", "loki"}))
      ->capture_default_str()
      ->group(kCache);

  app.add_option("--thresholds", o.thresholds,
                 "When a head reuses its rows: importance (--eta, --p), fitted (--keep), both "
                 "from the profile, fixed (--eta), auto (the first of these there is)")
      ->type_name("NAME")
      ->check(one_of({"auto", "fitted", "importance", "fixed"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--keep", o.keep,
                 "Fitted thresholds: share of the attention mass of fresh rows to keep")
      ->type_name("X")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--eta", o.eta,
                 "Largest threshold on the queries' cosine; 1: always refresh, -1: never")
      ->type_name("X")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--p", o.p, "Exponent of the importance in the thresholds")
      ->type_name("X")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--aggregation", o.aggregation,
                 "How a group's similarities become one: importance (weighted harmonic mean), "
                 "harmonic, mean, min")
      ->type_name("NAME")
      ->check(one_of({"importance", "harmonic", "mean", "min"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--sink", o.sink_tokens, "First tokens, always attended")
      ->type_name("TOKENS")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--recent", o.recent_tokens, "Last tokens, always attended")
      ->type_name("TOKENS")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--carry", o.carry_tokens,
                 "Tokens that left the recent window and stay attended until the head's next "
                 "refresh, at most")
      ->type_name("TOKENS")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--resident-heads", o.resident_heads,
                 "Heads whose KV stays on the device, beside layer 0: a number (the hardest to "
                 "reuse first), formula (from link and layer time), none")
      ->type_name("N|formula|none")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_flag("--resident-first-layer,!--no-resident-first-layer", o.resident_first_layer,
               "Keep layer 0 on the device (default: yes)")
      ->group(kAdvanced);
  app.add_flag("--resident-full", o.resident_full_attention,
               "Resident heads attend every row instead of their top rows")
      ->group(kAdvanced);
  app.add_option("--dense-layers", o.dense_layers,
                 "First layers that stay on the device and attend every row")
      ->type_name("N")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--epsilon", o.epsilon, "Tolerance of a head's reuse difficulty")
      ->type_name("X")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option(
         "--prefetch", o.prefetch,
         "Fetch a layer's rows so many layers ahead, with a predicted query: 1 (or on) to 4, 0 (or "
         "off), auto (0: predicted queries cost hits; faster on a GPU, nothing gained on a CPU)")
      ->type_name("LAYERS")
      ->check(one_of({"auto", "0", "1", "2", "3", "4", "off", "on"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--hata-bits", o.hata_bits,
                 "Bits of a hata code: 128, 256, or 0: 256, or what the profile has")
      ->type_name("N")
      ->check(CLI::IsMember({0, 128, 256}).description(""))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_flag("--hata-norms,!--no-hata-norms", o.hata_norms,
               "Weight hata's scores by the keys' norms (default: yes)")
      ->group(kAdvanced);
  app.add_option("--hata-group", o.hata_group,
                 "How hata's query heads of a group come to one score: sum (of differing bits), "
                 "softmax (of estimated products), auto: softmax where codes have norms")
      ->type_name("NAME")
      ->check(one_of({"auto", "sum", "softmax"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--loki-rank", o.loki_rank, "Leading components loki scores with; 0: head_dim / 4")
      ->type_name("N")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_flag("--delta,!--no-delta", o.delta_update,
               "Move only rows that are not cached yet (default: yes)")
      ->group(kAdvanced);
  app.add_option("--slots", o.slots,
                 "Slots a head as a multiple of its budget; rows that left the top stay there "
                 "until the slot is needed")
      ->type_name("X")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--host-rows", o.host_rows,
                 "Rows in the host store: auto (as on the device), fp8, int8, int4 (groups of 64)")
      ->type_name("TYPE")
      ->check(one_of({"auto", "fp8", "int8", "int4"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option(
         "--transfer", o.transfer,
         "How rows come to a GPU: gpu-pull (kernels read them), cpu-push (CPU threads write "
         "what the GPU asks for), copy (gathered and copied between kernels), auto: "
         "gpu-pull")
      ->type_name("NAME")
      ->check(one_of({"auto", "gpu-pull", "cpu-push", "copy"}))
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_option("--transfer-threads", o.transfer_threads,
                 "Threads that gather rows for cpu-push and copy; 0: the cores but one, at most 16")
      ->type_name("N")
      ->capture_default_str()
      ->group(kAdvanced);
  app.add_flag("--measure-recall", o.measure_recall,
               "Compare every selection with the exact one (slow)")
      ->group(kAdvanced);
  DeclareKvPolicyFlags(app, &o);
}

KvOptions KvFlags::ToKvOptions() const {
  KvOptions result = options;
  result.budget = KvBudget::Parse(budget);
  result.device_memory = device_memory.value;
  result.host_memory = host_memory.value;
  result.Validate();
  return result;
}

std::vector<std::string> KvFlags::Unused() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->count() == 0) continue;
    const std::string& group = option->get_group();
    const std::string name = option->get_name();
    // Options of litecache are also other policies', except those of one that has none.
    const bool shared = group == kAdvanced || name == "--kv-budget" || name == "--retriever";
    const bool of_another = group.starts_with(kOfPolicy) && group != kOfPolicy + options.policy;
    if (shared ? options.policy == "full" : of_another) names.push_back(name);
  }
  return names;
}

void KvFlags::WarnOfUnused() const {
  const std::vector<std::string> names = Unused();
  if (names.empty()) return;
  SPDLOG_WARN("{} {} nothing with --kv-policy {}{}", fmt::join(names, ", "),
              names.size() == 1 ? "does" : "do", options.policy,
              options.policy == "full" ? "; did you mean --kv-policy litecache?" : "");
}

}  // namespace litecache::cli
