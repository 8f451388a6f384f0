#include "lab/papers/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "bench/measurement_json.h"
#include "bench/runner.h"
#include "engine/kv_profile.h"
#include "kv/retrieve/hata_weights.h"
#include "lab/forced/reuse_override.h"
#include "lab/papers/systems.h"
#include "lab/trace/replay.h"
#include "lab/trace/replays_trace.h"

namespace litecache::bench::papers {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kHataBits = 256;     // for every system that names them (systems.cc)
constexpr int64_t kSlowSteps = 4;  // timed for systems that take a large part of a second per step

}  // namespace

struct Lab::Loaded {
  std::string shape;
  Subject subject;
  // Replaces a missing profile: the trace's similarities and random hash weights, made once because
  // they take seconds for each plan and cache. Null without a trace.
  std::shared_ptr<const kv::Profile> profile;
};

Lab::Lab(const LabOptions& options)
    : options_(options),
      machine_(OpenMachine(options.device, options.threads)),
      stream_(machine_.compute().CreateStream()),
      rates_(options.rates) {}

Lab::~Lab() = default;

std::string Lab::machine() const { return machine_.compute().Info().name; }

std::string Lab::rates() const {
  if (!rates_) return "";
  return fmt::format("memory {:.1f} GB/s, {}arithmetic {:.0f} GFLOP/s",
                     rates_->bytes_per_second / 1e9,
                     rates_->link_bytes_per_second > 0
                         ? fmt::format("link {:.1f} GB/s, ", rates_->link_bytes_per_second / 1e9)
                         : "",
                     rates_->flops_per_second / 1e9);
}

Lab::Loaded& Lab::Load(const std::string& shape) {
  if (loaded_ != nullptr && loaded_->shape == shape) return *loaded_;
  loaded_.reset();  // releases its memory for the next one
  // Kept memory must not count against the next one's budget.
  if (KeepPinned::bytes() > machine_.cpu->Info().free_memory / 2) KeepPinned::Drop();
  const auto names = model::ModelConfig::ShapeNames();
  const bool published = std::find(names.begin(), names.end(), shape) != names.end();
  SubjectOptions options{
      .seed = options_.seed,
      .longest = options_.longest + options_.decode_steps + kWarmUpSteps + kBreakdownSteps,
      .memory = options_.memory,
      .caps = options_.caps,
      .prefill_chunk = options_.prefill_chunk};
  (published ? options.shape : options.model) = shape;
  loaded_.reset(new Loaded{shape, Subject(machine_, options), nullptr});
  if (options_.trace != nullptr) {
    const kv::Layout layout = loaded_->subject.layout();
    auto profile = std::make_shared<kv::Profile>(lab::ProfileOf(*options_.trace, layout));
    profile->hata[kHataBits] = kv::RandomHataWeights(layout, kHataBits);
    loaded_->profile = std::move(profile);
  }
  if (!rates_) {
    rates_ = MeasureMachine(machine_.compute(), *stream_, machine_.cpu->pool(),
                            loaded_->subject.decoder().kv_dtype());
  }
  return *loaded_;
}

Json Lab::Measure(const Cell& cell, const std::function<void(int64_t, int64_t)>& progress) {
  try {
    return cell.kind == Kind::kAccuracy ? MeasureAccuracy(cell) : MeasureSpeed(cell, progress);
  } catch (const Unsupported& error) {
    return {{"skipped", error.what()}};
  } catch (const CapacityError& error) {
    return {{"skipped", error.what()}};
  } catch (const InvalidArgument& error) {
    return {{"skipped", error.what()}};
  }
}

std::string Lab::Force(const Cell& cell, kv::CachePlan* plan) const {
  if (options_.trace != nullptr && !cell.system.hit_ratio && !cell.system.overlap) {
    return lab::ReplayTrace(plan, options_.trace) ? "trace" : "";
  }
  const kv::HeadPlan* heads = plan->heads();
  if (heads == nullptr) return "";  // the policy does no lookups
  const lab::ReuseShares shares{.hit_ratio = cell.system.hit_ratio.value_or(options_.hit_ratio),
                                .overlap = cell.system.overlap.value_or(options_.overlap),
                                .seed = options_.seed};
  lab::ForceReuse(plan, lab::DrawReuse(*heads, shares));
  return "shares";
}

Json Lab::MeasureSpeed(const Cell& cell, const std::function<void(int64_t, int64_t)>& progress) {
  KvOptions options = OptionsOf(cell.system);
  // The rows are random, and the trace determines the selection: centroids need not be good.
  if (options.policy == "pqcache" && cell.kind == Kind::kDecode) {
    FindOption(KvOptionTable(), "pqcache.iterations").set(options, "1", cell.system.name);
  }
  Loaded& loaded = Load(cell.shape);
  Subject& subject = loaded.subject;
  auto profile = engine::LoadProfile(options, subject.directory(), subject.config());
  if (profile == nullptr && options.policy == "litecache") profile = loaded.profile;
  const auto plan =
      kv::MakeCachePlan(subject.layout(), options, profile, machine_.compute().type());
  const std::string forced = Force(cell, plan.get());
  const bool decode = cell.kind == Kind::kDecode, slow = cell.system.turn == kSlow;
  RunOptions run{.prefill_chunk = subject.prefill_chunk(),
                 .prefill_repeats = options_.prefill_repeats,
                 .decode_steps = slow ? std::min<int64_t>(options_.decode_steps, kSlowSteps)
                                      : options_.decode_steps,
                 .seed = options_.seed,
                 .graphs = cell.system.graphs,
                 .breakdown = decode && !slow};
  // If nothing is forced, one token is fed repeatedly; its queries differ only by position: the
  // most locality that random weights can have, for caches that would otherwise find none.
  const bool repeats = forced.empty() && cell.Forced();
  if (repeats) run.tokens = {1};
  Runner runner(machine_.compute(), *stream_, subject.decoder(), *rates_, run);
  const int64_t more = decode ? runner.MoreTokens() : 0;
  subject.CheckFits(cell.system.name, *plan, cell.batch, cell.context, more);
  if (!decode) {
    Json json = PrefillJson(runner.Prefill(*plan, cell.context, progress));
    json["prefill_chunk"] = run.prefill_chunk;
    return json;
  }
  Json json = DecodeJson(runner.Decode(*plan, cell.batch, cell.context, progress), run.decode_steps,
                         machine_.gpu != nullptr && cell.system.graphs);
  // The time of forcing is subtracted, because no real step has it.
  if (json.contains("breakdown")) {
    const double forcing = json["breakdown"].value("override_ms", 0.0);
    const double ms = json.value("ms_per_step", 0.0) - forcing;
    json["ms_per_step_with_forcing"] = json["ms_per_step"];
    json["ms_per_step"] = ms;
    json["tokens_per_s"] = static_cast<double>(cell.batch) / ms * 1e3;
  }
  if (cell.Forced()) json["locality"] = repeats ? "one token" : forced;
  json["steps"] = run.decode_steps;
  json["layers"] = subject.layout().layers;
  json["kv_device_bytes"] =
      static_cast<uint64_t>(cell.batch) * plan->BytesFor(cell.context + more).device;
  return json;
}

Json Lab::MeasureAccuracy(const Cell& cell) {
  loaded_.reset();
  KeepPinned::Drop();
  AccuracyRun run;
  run.model = cell.shape;
  run.engine.kv = OptionsOf(cell.system);
  run.engine.kv.device_memory = options_.caps.device;
  run.engine.kv.host_memory = options_.caps.host;
  run.engine.memory = options_.memory;
  run.engine.device = options_.device;
  run.engine.threads = options_.threads;
  run.engine.prefill_chunk = options_.prefill_chunk;
  run.engine.max_batch = options_.max_batch;
  run.length = cell.context;
  run.tasks = options_.accuracy_tasks;
  run.count = cell.batch;
  Json json = accuracy_.Run(run);
  json["machine"] = machine();  // the other results do not depend on whose machine it is
  return json;
}

}  // namespace litecache::bench::papers
