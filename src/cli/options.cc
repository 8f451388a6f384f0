#include "cli/options.h"

#include <fmt/ranges.h>

#include "base/logging.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/option_flags.h"

namespace litecache::cli {
namespace {

constexpr const char* kGeneral = "General";
constexpr const char* kModel = "Model";
constexpr const char* kSampling = "Sampling";

}  // namespace

CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& help) {
  // CLI11 makes a list option take all following words, and would split "[a,b]".
  return app.add_option(name, values, help)->allow_extra_args(false)->type_name("TEXT");
}

void GeneralOptions::Declare(CLI::App& app) {
  app.add_option("--options", options_file,
                 "Read options from this TOML file: keys are the flags' names, a table such as "
                 "[serve] is for one command. Environment variables, LITECACHE_KV_POLICY for "
                 "--kv-policy, win over it, and the command line over both")
      ->type_name("FILE")
      ->group(kGeneral);
  app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->group(kGeneral);
  app.add_flag("-q,--quiet", quiet, "Results and errors only: no progress bars, no summary")
      ->group(kGeneral);
  app.add_flag("--no-progress", no_progress,
               "No progress bars (there are none anyway where standard error is no terminal)")
      ->group(kGeneral);
}

void GeneralOptions::Apply() const {
  InitLogging(log_level);
  if (quiet || no_progress) ProgressBar::Quiet(true);
}

void EngineFlags::DeclareModel(CLI::App& app, bool required) {
  auto* option = app.add_option("-m,--model", model,
                                "Model directory in Hugging Face's layout, GGUF file, or org/name "
                                "from the local Hugging Face cache")
                     ->type_name("DIR")
                     ->group(kModel);
  if (required) option->required();
}

void EngineFlags::DeclareShape(CLI::App& app) {
  app.add_option("--shape", shape, "A published shape with random weights (see inspect --help-all)")
      ->type_name("NAME")
      ->group(kModel);
  app.add_option("--weights", weights, "random: random weights, for --shape; no files are read")
      ->type_name("KIND")
      ->check(CLI::IsMember({"random"}).description(""))
      ->capture_default_str()
      ->group(kModel);
}

void EngineFlags::DeclareGroup(CLI::App& app, std::string_view group) {
  for (const auto& option : EngineOptionTable()) {
    if (option.group == group && !option.programs_only) DeclareFlag(app, option, &options);
  }
}

void EngineFlags::DeclareSome(CLI::App& app, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    DeclareFlag(app, FindOption(EngineOptionTable(), name), &options);
  }
}

void EngineFlags::DeclareRun(CLI::App& app) {
  app_ = &app;
  DeclareGroup(app, "Engine");
  for (const auto& option : KvOptionTable()) DeclareFlag(app, option, &options.kv);
}

void EngineFlags::DeclarePrefix(CLI::App& app, bool on) {
  options.prefix_cache = on;
  DeclareGroup(app, "Prefixes");
}

EngineOptions EngineFlags::ToEngineOptions() const {
  options.Validate(OptionNames::kFlags);
  return options;
}

std::vector<std::string> EngineFlags::Unused() const {
  std::vector<std::string> names;
  const std::string policy = options.kv.policy == "auto" ? "litecache" : options.kv.policy;
  for (const auto& option : KvOptionTable()) {
    const CLI::Option* flag = app_->get_option(option.LongFlag());
    if (flag->count() > 0 && !option.AppliesTo(policy)) {
      names.push_back(option.LongFlag());
    }
  }
  return names;
}

void EngineFlags::WarnOfUnused() const {
  const std::vector<std::string> names = Unused();
  if (names.empty()) return;
  LogWarning("{} {} no effect with --kv-policy {}{}", fmt::join(names, ", "),
             names.size() == 1 ? "has" : "have", options.kv.policy,
             options.kv.policy == "full" ? "; did you mean --kv-policy litecache?" : "");
}

void SamplingFlags::Declare(CLI::App& app, int64_t default_max_tokens) {
  app.add_option("-n,--max-tokens", max_tokens,
                 "Largest number of tokens to generate; 0: until the context is full")
      ->type_name("TOKENS")
      ->default_str(fmt::format("{}", default_max_tokens))
      ->group(kSampling);
  app.add_option("--temperature,--temp", temperature,
                 "Sampling temperature; 0: greedy; default: that of the model's "
                 "generation_config.json, else 1")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--top-k", top_k, "Sample from the K most likely tokens; 0: off")
      ->type_name("K")
      ->group(kSampling);
  app.add_option("--top-p", top_p,
                 "Sample from the most likely tokens whose probabilities add up to P; 1: off")
      ->type_name("P")
      ->group(kSampling);
  app.add_option("--min-p", min_p,
                 "Drop tokens less likely than P times the most likely one; 0: off")
      ->type_name("P")
      ->group(kSampling);
  app.add_option("--repetition-penalty", repetition_penalty,
                 "Divide the logits of tokens seen in prompt or answer; 1: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--presence-penalty", presence_penalty,
                 "Subtract from the logits of tokens that are in the answer; 0: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--frequency-penalty", frequency_penalty,
                 "Subtract from a token's logit for each time it is in the answer; 0: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("-s,--seed", seed,
                 "Seed of sampling; the same seed gives the same text; default: a random one")
      ->type_name("N")
      ->group(kSampling);
  AddRepeated(app, "--stop", stop, "Stop before this text; can be given several times")
      ->group(kSampling);
  app.add_option(
         "--stop-token", stop_tokens,
         "Stop at this token id, in addition to the model's own; can be given several times")
      ->allow_extra_args(false)
      ->type_name("ID")
      ->group(kSampling);
  app.add_flag("--ignore-eos", ignore_eos, "Continue past the end-of-sequence token")
      ->group(kSampling);
}

SamplingParams SamplingFlags::Merge(const SamplingParams& defaults, bool wants_sampling) const {
  SamplingParams params = defaults;
  if (top_k) params.top_k = *top_k;
  if (top_p) params.top_p = *top_p;
  if (min_p) params.min_p = *min_p;
  if (repetition_penalty) params.repetition_penalty = *repetition_penalty;
  if (presence_penalty) params.presence_penalty = *presence_penalty;
  if (frequency_penalty) params.frequency_penalty = *frequency_penalty;
  if (seed) params.seed = *seed;
  if (temperature) {
    params.temperature = *temperature;
  } else if (params.temperature == 0 && (wants_sampling || top_k || top_p || min_p)) {
    params.temperature = 1;
  }
  params.Validate();
  return params;
}

void SamplingFlags::ApplyStops(Request* request) const {
  for (const auto& text : stop) {
    if (text.empty()) throw UsageError("--stop: the text is empty");
  }
  request->stop = stop;
  request->stop_token_ids = stop_tokens;
  request->ignore_eos = ignore_eos;
}

}  // namespace litecache::cli
