#include "cli/commands/bench.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/logging.h"
#include "base/progress.h"
#include "base/units.h"
#include "bench/measurement_json.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/json_text.h"
#include "device/keep_pinned.h"
#include "device/machine.h"
#include "engine/deterministic.h"
#include "engine/engine_plan.h"
#include "engine/kv_profile.h"
#include "engine/ranks/ranks.h"
#include "eval/run/configuration.h"
#include "kv/api/policy_registry.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/prediction_sources.h"
#include "kv/heads/profile.h"
#include "model/weight_placement.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {

using Json = nlohmann::ordered_json;

std::string BenchCommand::Notes() const {
  return "Memory bandwidth and arithmetic rate are measured first. The floor of a measurement "
         "is the longer of (bytes that must be read / bandwidth) and (operations / rate), and "
         "`x floor` says how many times longer it took. Prefill is measured for one sequence "
         "of every context, decode for every batch and context; times are medians. --fill says "
         "how the KV cache gets its rows before decode is timed: synthetic stores random rows, "
         "prefill runs the model. A model that fits the processor's caches can be faster than "
         "the floor.\n"
         "Queries of random weights or random tokens resemble no others, so policy litecache "
         "finds nothing to reuse; --text with --fill prefill measures what a model reuses.";
}

std::vector<std::string> BenchCommand::Examples() const {
  return {"litecache bench --shape llama3.2-1b --batch 1,4 --context 512,4096",
          "litecache bench --model DIR --context 16k --only decode --json",
          "litecache bench --model DIR --policies full,litecache --text FILE --fill prefill"};
}

std::vector<std::string> BenchCommand::CommonOptions() const {
  return {"--shape",  "--batch", "--context", "--only",      "--steps", "--policies",
          "--config", "--text",  "--fill",    "--breakdown", "--json"};
}

void BenchCommand::Declare(CLI::App& app) {
  flags_.DeclareModel(app, false);
  flags_.DeclareShape(app);
  app.add_option("--layers", layers_,
                 "Run only this many layers of --shape, if the whole model does not fit")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--batch", batch_list_, "Sequences decoded together, comma-separated")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--context", context_list_, "Tokens of context, comma-separated, e.g. 512,4k")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--only", only_, "prefill or decode; default: both")
      ->type_name("WHAT")
      ->check(CLI::IsMember({"prefill", "decode"}).description(""));
  app.add_option("--steps", options_.decode_steps, "Timed decode steps")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->capture_default_str();
  app.add_option("--repeats", options_.prefill_repeats,
                 "Timed prefills, after an untimed one; 0: time the first one")
      ->type_name("N")
      ->check(CLI::Range(0, 1000).description(""))
      ->capture_default_str();
  app.add_option("--policies", policies_,
                 "KV policies to run side by side, comma-separated, e.g. full,litecache; "
                 "default: --kv-policy")
      ->type_name("LIST");
  AddRepeated(app, "--config", named_,
              "An additional configuration NAME:key=value,..., whose KV options differ from the "
              "flags', e.g. eq11:policy=kvpr,kvpr_chunked=false; can be given several times");
  app.add_option("--text", text_,
                 "Text whose tokens are fed (with --fill prefill); default: random tokens, whose "
                 "queries point anywhere and leave nothing to reuse")
      ->type_name("FILE");
  app.add_option("--fill", fill_, "KV rows before decode: synthetic or prefill")
      ->type_name("HOW")
      ->check(CLI::IsMember({"synthetic", "prefill"}).description(""))
      ->capture_default_str();
  app.add_option("--graph", graphs_,
                 "Decode steps on a GPU replayed as graphs: on, off, or both, one after the "
                 "other")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"on", "off", "both"}).description(""))
      ->capture_default_str();
  app.add_flag("--breakdown", options_.breakdown,
               "Where a decode step's time goes: matrix products, cache management, retrieval, "
               "transfer, attention, the rest, launch");
  app.add_option("-s,--seed", options_.seed, "Seed of weights and tokens")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--json", json_, "Print one JSON object");
  flags_.DeclareRun(app);
}

int BenchCommand::Run(const std::vector<std::string>&) {
  const KeepPinned keep;  // cells of the grid need stores of similar size
  batches_ = ParseTokenList(batch_list_, "--batch");
  contexts_ = ParseTokenList(context_list_, "--context");
  const auto group = StartRanks();
  const Machine machine = OpenMachine(flags_.options.device, flags_.options.threads);
  Device& device = machine.compute();
  const bool gpu = machine.gpu != nullptr;
  if (!gpu) graphs_ = "on";  // the CPU has no graphs: measure once
  const auto ranks = group == nullptr ? nullptr : parallel::Connect(device, group);
  const auto stream = device.CreateStream();  // after `ranks`, which its graphs use
  if (flags_.options.deterministic) MakeBatchInvariant(*stream);
  bench::SubjectOptions wanted = Wanted();
  wanted.weights.ranks = ranks.get();
  wanted.before_weights = [&](const bench::Subject& shape) {
    MakePlans(shape, device.type());
    for (const Plan& plan : plans_) CheckFits(shape, plan);
  };
  bench::Subject subject(machine, wanted);
  if (plans_.empty()) MakePlans(subject, device.type());
  options_.prefill_chunk = subject.prefill_chunk();
  options_.fill = fill_ == "prefill" ? bench::Fill::kPrefill : bench::Fill::kSynthetic;
  for (const Plan& plan : plans_) CheckFits(subject, plan);
  const bench::MachineRates rates =
      bench::MeasureMachine(device, *stream, machine.cpu->pool(), subject.decoder().kv_dtype());
  bench::Runner runner(device, *stream, subject.decoder(), rates, options_);
  const BenchReport report{.subject = subject,
                           .device = device,
                           .rates = rates,
                           .fill = fill_,
                           .remark = Remark(),
                           .gpu = gpu,
                           .decode_steps = options_.decode_steps};
  Output output;
  Json json = report.HeaderJson();
  AddToJson(&json);
  if (!json_) output.Write(report.HeaderText());
  output.Flush();
  if (only_ != "decode") Prefill(runner, report, output, &json);
  if (only_ != "prefill") Decode(runner, report, output, &json);
  if (json_) output.Write(ToJsonLine(json) + "\n");
  output.Flush();
  return kOk;
}

// All ranks run the same measurements at once; rank 0 reports its own.
std::shared_ptr<parallel::ProcessGroup> BenchCommand::StartRanks() {
  if (flags_.options.tensor_parallel == 1) return nullptr;
  auto group = parallel::ProcessGroup::Start(flags_.options.tensor_parallel);
  flags_.options = engine::OptionsOfRank(flags_.options, *group);
  if (group->rank() != 0) {
    InitLogging("error");
    ProgressBar::Quiet(true);
  }
  return group;
}

bench::SubjectOptions BenchCommand::Wanted() const {
  if (flags_.shape.empty() && flags_.model.empty()) {
    throw UsageError("bench needs --shape NAME or --model DIR");
  }
  if (flags_.options.draft != "off" || flags_.options.exact) {
    throw UsageError(
        "--draft, --exact: bench measures single steps, which have no drafts; `litecache generate "
        "--json` reports them, and the speed of an answer");
  }
  if (layers_ > 0 && flags_.shape.empty()) throw UsageError("--layers requires --shape");
  return {.shape = flags_.shape,
          .layers = layers_,
          .model = flags_.model,
          .weights = engine::WeightOptions(flags_.options),
          .seed = options_.seed,
          .longest = *std::max_element(contexts_.begin(), contexts_.end()) + MoreTokens(),
          .memory = flags_.options.memory,
          .caps = {flags_.options.kv.device_memory, flags_.options.kv.host_memory},
          .prefill_chunk = flags_.options.prefill_chunk};
}

std::shared_ptr<const kv::Profile> BenchCommand::ProfileFor(const KvOptions& options,
                                                            const bench::Subject& subject) const {
  return engine::LoadProfile(options, subject.directory(), subject.config());
}

void BenchCommand::MakePlans(const bench::Subject& subject, DeviceType device) {
  const EngineOptions base = flags_.ToEngineOptions();
  const kv::Layout& layout = subject.layout();
  std::vector<std::string> policies{base.kv.policy};
  if (!policies_.empty()) policies = CLI::detail::split(policies_, ',');
  std::vector<eval::Configuration> wanted;
  for (const std::string& policy : policies) {
    wanted.push_back({policy, base});
    wanted.back().engine.kv.policy = policy;
  }
  if (!named_.empty()) {
    for (auto& named : eval::MakeConfigurations({.base = base,
                       .policies = {},
                       .retrievers = {},
                       .budgets = {},
                       .named = named_,
                       .kv_only = true})) {
      wanted.push_back(std::move(named));
    }
  }
  for (const auto& [name, engine] : wanted) {
    const KvOptions& options = engine.kv;
    const std::string& policy = options.policy;
    if (policy == "litecache") {
      model::CheckLayersAhead(
          model::WeightPlacement::Of(layout.layers, flags_.options.weights_on_device),
          kv::LayersAhead(kv::PredictionSources(options, layout.layers, device)));
    }
    const auto profile = ProfileFor(options, subject);
    plans_.push_back({name, options, kv::MakeCachePlan(layout, options, profile, device), nullptr});
    if (kv::ResidentByRoom(options) && device == DeviceType::kCuda) {
      plans_.back().on_device =
          kv::MakeCachePlan(layout, kv::KeptOnDevice(options), profile, device);
    }
    for (const auto& line : engine::DescribePlan(*plans_.back().cache, options, profile.get())) {
      LogInfo("{}: {}", name, line);
    }
    // Random weights have no profile: the message above says what a policy does without one.
    const std::string warning = plans_.back().cache->Warning();
    if (!warning.empty() && !kv::FindPolicy(policy).uses_profile) {
      LogWarning("{}: {}", name, warning);
    }
  }
  PreparePlans(plans_);
  ReadText(subject);
}

kv::CachePlan& BenchCommand::Plan::For(const bench::Subject& subject, int64_t batch,
                                       int64_t context) const {
  return on_device != nullptr && subject.Fits(*on_device, batch, context) ? *on_device : *cache;
}

void BenchCommand::ReadText(const bench::Subject& subject) {
  if (text_.empty()) return;
  if (subject.directory().empty()) {
    throw UsageError("--text needs a model with a tokenizer: --model DIR");
  }
  options_.tokens = tokenizer::Tokenizer::FromModel(subject.directory())->Encode(ReadInput(text_));
  if (options_.tokens.empty()) throw InvalidArgument("--text {}: the file has no tokens", text_);
}

// Number of tokens that a measurement adds to its context.
int64_t BenchCommand::MoreTokens() const {
  if (only_ == "prefill") return 0;
  return options_.decode_steps + bench::kWarmUpSteps +
         (options_.breakdown ? bench::kBreakdownSteps : 0);
}

// Checked before minutes are spent on the cells that fit.
void BenchCommand::CheckFits(const bench::Subject& subject, const Plan& plan) const {
  const int64_t batch =
      only_ == "prefill" ? 1 : *std::max_element(batches_.begin(), batches_.end());
  const int64_t context = *std::max_element(contexts_.begin(), contexts_.end());
  subject.CheckFits(plan.name, plan.For(subject, batch, context + MoreTokens()), batch, context,
                    MoreTokens());
}

void BenchCommand::Prefill(bench::Runner& runner, const BenchReport& report, Output& output,
                           Json* json) {
  (*json)["prefill"] = Json::array();
  if (!json_) output.Write(report.PrefillHead());
  output.Flush();
  for (const int64_t context : contexts_) {
    for (const Plan& plan : plans_) {
      bench::Measurement m;
      {
        ProgressBar bar(fmt::format("Prefill {} {}", context, plan.name),
                        context * (options_.prefill_repeats + 1), "tokens");
        m = runner.Prefill(plan.For(report.subject, 1, context), context,
                           [&](int64_t done, int64_t) { bar.Update(done); });
      }
      Json entry = {{"policy", plan.name}};
      entry.update(bench::PrefillJson(m));
      (*json)["prefill"].push_back(std::move(entry));
      if (!json_) output.Write(report.PrefillRow(plan.name, m));
      output.Flush();
    }
  }
}

void BenchCommand::Decode(bench::Runner& runner, const BenchReport& report, Output& output,
                          Json* json) {
  (*json)["decode"] = Json::array();
  if (!json_) output.Write(report.DecodeHead());
  output.Flush();
  for (const int64_t context : contexts_) {
    for (const int64_t batch : batches_) {
      for (const Plan& plan : plans_) {
        for (const bool graphs : {true, false}) {
          if (graphs_ == (graphs ? "off" : "on")) continue;
          runner.UseGraphs(graphs);
          if (flags_.options.deterministic) {
            runner.LimitStepRows(engine::DeterministicRows(report.subject.decoder(),
                                                           report.device.type(), plan.options));
          }
          bench::Measurement m;
          {
            ProgressBar bar(fmt::format("Decode {} x {} {}", batch, context, plan.name),
                            batch * context + MoreTokens(), "tokens");
            m = runner.Decode(plan.For(report.subject, batch, context + MoreTokens()), batch,
                              context, [&](int64_t done, int64_t) { bar.Update(done); });
          }
          Json entry = {{"policy", plan.name}};
          entry.update(bench::DecodeJson(m, options_.decode_steps, report.gpu && graphs));
          (*json)["decode"].push_back(std::move(entry));
          if (!json_) output.Write(report.DecodeRow(plan.name, graphs, m));
          output.Flush();
        }
      }
    }
  }
}

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace litecache::cli
