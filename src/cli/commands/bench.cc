// litecache bench: how fast prefill and decode are, and how far from what the machine allows.
#include <fmt/format.h>

#include "base/logging.h"
#include "base/progress.h"
#include "base/units.h"
#include "bench/runner.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/json_text.h"
#include "cli/kv_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "device/machine.h"
#include "engine/kv_profile.h"
#include "engine/memory_plan.h"
#include "io/hub.h"
#include "kv/imposed_reuse.h"
#include "kv/tiers.h"
#include "model/decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(const bench::Measurement& m) { return m.seconds / m.floor_seconds; }

class BenchCommand final : public Command {
 public:
  std::string Name() const override { return "bench"; }
  std::string Summary() const override {
    return "Speed of prefill and decode over a grid of batches and contexts.";
  }
  std::string Notes() const override {
    return "Memory bandwidth and arithmetic rate are measured first. The floor of a measurement "
           "is\n"
           "the longer of (bytes that must be read / bandwidth) and (operations / rate), and `x "
           "floor`\n"
           "says how many times longer it took. Prefill is measured for one sequence of every "
           "context,\n"
           "decode for every batch and context; times are medians. --fill tells how the KV cache "
           "gets\n"
           "its rows before decode is timed: synthetic stores random rows, prefill runs the "
           "model.\n"
           "A model that fits the processor's caches can be faster than the floor.\n"
           "Queries of random weights or random tokens are like no others, so that policy "
           "litecache\n"
           "finds nothing to reuse: --hit-ratio and --overlap impose it. Lookups and selections "
           "do\n"
           "their work, and their results are replaced.\n\n"
           "  litecache bench --shape llama3.2-1b --batch 1,4 --context 512,4096\n"
           "  litecache bench --model DIR --context 16k --only decode --json\n"
           "  litecache bench --shape llama3-8b --policies full,litecache --context 128000 \\\n"
           "    --only decode --hit-ratio 0.8 --overlap 0.7\n";
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, false);
    app.add_option("--shape", shape_, "A published shape with random weights instead of a model")
        ->type_name("NAME");
    app.add_option("--weights", weights_, "random: what --shape gets; needs no files")
        ->type_name("KIND")
        ->check(CLI::IsMember({"random"}).description(""))
        ->capture_default_str();
    app.add_option("--batch", batches_, "Sequences decoded together, comma-separated")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--context", contexts_, "Tokens of context, comma-separated, e.g. 512,4k")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--only", only_, "prefill or decode; default: both")
        ->type_name("WHAT")
        ->check(CLI::IsMember({"prefill", "decode"}).description(""));
    app.add_option("--steps", options_.decode_steps, "Decode steps timed")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str();
    app.add_option("--repeats", options_.prefill_repeats,
                   "Prefills timed, after one that is not; 0: time the first")
        ->type_name("N")
        ->check(CLI::Range(0, 1000).description(""))
        ->capture_default_str();
    app.add_option("--policies", policies_,
                   "KV policies to run side by side, comma-separated, e.g. full,litecache; "
                   "default: --kv-policy")
        ->type_name("LIST");
    app.add_option("--text", text_,
                   "Text whose tokens are fed (with --fill prefill); default: random tokens, whose "
                   "queries point anywhere and leave nothing to reuse")
        ->type_name("FILE");
    app.add_option("--fill,--prefill", fill_, "KV rows before decode: synthetic or prefill")
        ->type_name("HOW")
        ->check(CLI::IsMember({"synthetic", "prefill"}).description(""))
        ->capture_default_str();
    app.add_option("--hit-ratio", hit_ratio_,
                   "Share of policy litecache's lookups that hit, imposed (which ones: by --seed)")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""));
    app.add_option("--overlap", overlap_,
                   "Share of a refreshed head's rows that are on the device already, imposed")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""));
    app.add_option("--graph", graphs_,
                   "Decode steps on a GPU replayed as graphs: on, off, or both, one after the "
                   "other")
        ->type_name("WHEN")
        ->check(CLI::IsMember({"on", "off", "both"}).description(""))
        ->capture_default_str();
    app.add_flag("--breakdown", options_.breakdown,
                 "Where a decode step's time goes: matrix products, cache management, retrieval, "
                 "transfer, attention, the rest");
    app.add_option("-s,--seed", options_.seed, "Seed of weights and tokens")
        ->type_name("N")
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object");
    flags_.DeclareRun(app);
  }

  int Run(const std::vector<std::string>&) override {
    const auto batches = ParseList(batches_, "--batch");
    const auto contexts = ParseList(contexts_, "--context");
    const Machine machine = OpenMachine(flags_.device, flags_.threads);
    Device& device = machine.compute();
    const auto stream = device.CreateStream();
    gpu_ = machine.gpu != nullptr;
    threads_ = machine.cpu->pool().size();
    if (!gpu_) graphs_ = "on";  // there are none: once
    LoadModel(machine, contexts);
    MakePlans(device.type());
    options_.prefill_chunk = flags_.prefill_chunk;
    options_.fill = fill_ == "prefill" ? bench::Fill::kPrefill : bench::Fill::kSynthetic;
    const DType dtype = decoder_->kv_dtype();  // of the arithmetic, too
    const bench::MachineRates rates =
        bench::MeasureMachine(device, *stream, machine.cpu->pool(), dtype);
    bench::Runner runner(device, *stream, *decoder_, rates, options_);
    for (const Plan& plan : plans_) CheckFits(runner, plan, batches, contexts);

    Output output;
    Json json = Header(device, rates, dtype);
    if (!json_) output.Write(HeaderText(device, rates, dtype));
    output.Flush();
    if (only_ != "decode") Prefill(runner, contexts, output, &json);
    if (only_ != "prefill") Decode(runner, batches, contexts, output, &json);
    if (json_) output.Write(ToJsonLine(json) + "\n");
    output.Flush();
    return kOk;
  }

 private:
  static std::vector<int64_t> ParseList(const std::string& text, const std::string& name) {
    std::vector<int64_t> values;
    for (const auto& word : CLI::detail::split(text, ',')) {
      values.push_back(ParseTokens(word, name));
      if (values.back() < 1) throw UsageError("{}: '{}' is not above 0", name, word);
    }
    if (values.empty()) throw UsageError("{}: the list is empty", name);
    return values;
  }

  void LoadModel(const Machine& machine, const std::vector<int64_t>& contexts) {
    Device& device = machine.compute();
    const auto most = [](const Device& d) {
      return static_cast<uint64_t>(0.9 * static_cast<double>(d.Info().free_memory));
    };
    budget_ = flags_.memory.value > 0 ? flags_.memory.value : most(*machine.cpu);
    caps_ = {flags_.kv.device_memory.value, flags_.kv.host_memory.value};
    if (machine.gpu != nullptr) {
      if (caps_.host == 0) caps_.host = budget_;
      if (caps_.device == 0) caps_.device = most(*machine.gpu);
      budget_ = caps_.total();
    }
    if (caps_.device == 0) caps_.device = budget_;
    if (caps_.host == 0) caps_.host = budget_;
    model::LoadOptions load;
    load.compute_f32 = flags_.dtype == "f32";
    std::unique_ptr<ProgressBar> bar;
    load.progress = [&bar](int64_t done, int64_t total) {
      if (bar == nullptr) bar = std::make_unique<ProgressBar>("Loading", total, "B");
      bar->Update(done);
    };
    if (!shape_.empty()) {
      name_ = shape_;
      auto config = model::ModelConfig::FromShapeName(shape_);
      // Random weights know no positions: nothing keeps them from longer contexts.
      const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
      config.max_context = std::max(config.max_context, longest + MoreTokens());
      engine::CheckWeightsFit(shape_,
                              static_cast<uint64_t>(config.parameters()) *
                                  SizeOf(load.compute_f32 ? DType::kF32 : config.weight_dtype),
                              caps_.device);
      decoder_ = model::RandomDecoder(device, config, options_.seed, load);
    } else if (!flags_.model.empty()) {
      name_ = flags_.model;
      directory_ = io::ResolveModelDirectory(flags_.model);
      decoder_ = model::LoadDecoder(device, directory_, load);
    } else {
      throw UsageError("bench needs --shape NAME or --model DIR");
    }
  }

  struct Plan {
    std::string policy;
    std::unique_ptr<kv::CachePlan> cache;
  };

  void MakePlans(DeviceType device) {
    KvOptions options = flags_.kv.ToKvOptions();
    const kv::Layout layout = decoder_->config().kv_layout(decoder_->kv_dtype());
    std::vector<std::string> policies{options.policy};
    if (!policies_.empty()) policies = CLI::detail::split(policies_, ',');
    for (const std::string& policy : policies) {
      options.policy = policy;
      const auto profile = engine::LoadProfile(options, directory_, layout);
      plans_.push_back({policy, kv::MakeCachePlan(layout, options, profile, device)});
      for (const auto& line : engine::DescribePlan(*plans_.back().cache, options, profile.get())) {
        SPDLOG_INFO("{}: {}", policy, line);
      }
    }
    ImposeReuse();
    if (text_.empty()) return;
    if (directory_.empty()) throw UsageError("--text needs a model with a tokenizer: --model DIR");
    options_.tokens = tokenizer::Tokenizer::FromDirectory(directory_)->Encode(ReadInput(text_));
    if (options_.tokens.empty()) throw InvalidArgument("--text {}: the file has no tokens", text_);
  }

  void ImposeReuse() {
    if (!hit_ratio_ && !overlap_) return;
    bool imposed = false;
    for (const Plan& plan : plans_) {
      const kv::HeadPlan* heads = plan.cache->heads();
      if (heads == nullptr) continue;  // nothing is looked up
      kv::ReuseShares shares{.hit_ratio = hit_ratio_, .overlap = overlap_, .seed = options_.seed};
      plan.cache->Impose(std::make_shared<const kv::ImposedReuse>(kv::DrawReuse(*heads, shares)));
      imposed = true;
    }
    if (!imposed) {
      throw UsageError(
          "--hit-ratio and --overlap are of policy litecache: add it to --policies, or pass "
          "--kv-policy litecache");
    }
  }

  // Tokens a measurement goes past its context.
  int64_t MoreTokens() const {
    if (only_ == "prefill") return 0;
    return options_.decode_steps + bench::kWarmUpSteps +
           (options_.breakdown ? bench::kBreakdownSteps : 0);
  }

  // Before minutes are spent on the cells that fit.
  void CheckFits(const bench::Runner& runner, const Plan& plan, const std::vector<int64_t>& batches,
                 const std::vector<int64_t>& contexts) const {
    const int64_t batch = *std::max_element(batches.begin(), batches.end());
    const int64_t context = *std::max_element(contexts.begin(), contexts.end());
    const bool decode = only_ != "prefill";
    const int64_t tokens = context + MoreTokens();
    if (tokens > decoder_->config().max_context) {
      throw InvalidArgument("--context {}: {} tokens are needed, and the model has a context of {}",
                            context, tokens, decoder_->config().max_context);
    }
    const uint64_t fixed = decoder_->weight_bytes() +
                           decoder_->WorkspaceBytes(flags_.prefill_chunk, 1) +
                           plan.cache->ScratchBytes(decode ? batch : 1, tokens, threads_);
    const auto kv_bytes = [&](int64_t length) {
      return runner.DecodeKvBytes(*plan.cache, decode ? batch : 1, length);
    };
    const auto fits = [&](int64_t length) {
      const kv::TierBytes kv = kv_bytes(length);
      return fixed + kv.total() <= budget_ && fixed + kv.device <= caps_.device &&
             kv.host <= caps_.host;
    };
    if (fits(context)) return;
    int64_t low = 0, high = context;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    throw CapacityError(
        "{}, batch {} at context {}: {} for weights and buffers and {} for KV are needed, and the "
        "memory budget is {} ({} on the device, {} for the host store): {}",
        plan.policy, batch, context, FormatBytes(fixed), kv::FormatTiers(kv_bytes(context)),
        FormatBytes(budget_), FormatBytes(caps_.device), FormatBytes(caps_.host),
        low > 0 ? fmt::format("{} tokens of context fit; lower --context or --batch, or raise "
                              "--memory or --device-memory",
                              low)
                : std::string("lower --batch, or raise --memory or --device-memory"));
  }

  Json Header(const Device& device, const bench::MachineRates& rates, DType dtype) const {
    const auto& config = decoder_->config();
    return {{"model",
             {{"name", name_},
              {"family", model::Name(config.family)},
              {"parameters", config.parameters()},
              {"weight_bytes", decoder_->weight_bytes()},
              {"kv_heads", config.layers * config.kv_heads},
              {"kv_bytes_per_token", config.kv_layout(dtype).token_bytes()}}},
            {"machine",
             {{"device", device.Info().name},
              {"threads", device.Info().parallelism},
              {"gb_per_s", rates.bytes_per_second / 1e9},
              {"gflop_per_s", rates.flops_per_second / 1e9},
              {"link_gb_per_s", rates.link_bytes_per_second / 1e9},
              {"arithmetic", litecache::Name(dtype)}}},
            {"fill", fill_},
            {"imposed", Imposed()}};
  }

  // Null: nothing is.
  Json Imposed() const {
    Json imposed;
    if (hit_ratio_) imposed["hit_ratio"] = *hit_ratio_;
    if (overlap_) imposed["overlap"] = *overlap_;
    return imposed;
  }

  std::string ImposedText() const {
    std::string text;
    if (hit_ratio_) text += fmt::format("hit ratio {:.3g}", *hit_ratio_);
    if (overlap_) text += fmt::format("{}overlap {:.3g}", text.empty() ? "" : ", ", *overlap_);
    if (text.empty()) return "";
    return fmt::format("imposed on policy litecache, not a property of these queries: {}\n", text);
  }

  std::string HeaderText(const Device& device, const bench::MachineRates& rates,
                         DType dtype) const {
    return fmt::format(
        "{} on {}\nmemory {:.1f} GB/s, {}{} arithmetic {:.0f} GFLOP/s (measured); "
        "weights {}\n{}",
        name_, device.Info().name, rates.bytes_per_second / 1e9,
        rates.link_bytes_per_second > 0
            ? fmt::format("link {:.1f} GB/s, ", rates.link_bytes_per_second / 1e9)
            : "",
        litecache::Name(dtype), rates.flops_per_second / 1e9, FormatBytes(decoder_->weight_bytes()),
        ImposedText());
  }

  void Prefill(bench::Runner& runner, const std::vector<int64_t>& contexts, Output& output,
               Json* json) {
    (*json)["prefill"] = Json::array();
    if (!json_) {
      output.Write(fmt::format("\n{:<10}{:>9}{:>12}{:>12}{:>12}{:>12}{:>9}\n", "prefill", "context",
                               "tok/s", "time", "GFLOP/s", "floor", "x floor"));
      output.Flush();
    }
    for (const int64_t context : contexts) {
      for (const Plan& plan : plans_) {
        bench::Measurement m;
        {
          ProgressBar bar(fmt::format("Prefill {} {}", context, plan.policy),
                          context * (options_.prefill_repeats + 1), "tokens");
          m = runner.Prefill(*plan.cache, context,
                             [&](int64_t done, int64_t) { bar.Update(done); });
        }
        const double rate = static_cast<double>(context) / m.seconds;
        const double gflops = m.cost.flops / m.seconds / 1e9;
        (*json)["prefill"].push_back({{"policy", plan.policy},
                                      {"context", context},
                                      {"tokens_per_s", rate},
                                      {"seconds", m.seconds},
                                      {"spread", m.spread},
                                      {"flops", m.cost.flops},
                                      {"gflop_per_s", gflops},
                                      {"floor_s", m.floor_seconds},
                                      {"ratio_to_floor", Ratio(m)}});
        if (json_) continue;
        output.Write(fmt::format("{:<10}{:>9}{:>12.1f}{:>12}{:>12.0f}{:>12}{:>9.2f}\n", plan.policy,
                                 context, rate, FormatSeconds(m.seconds), gflops,
                                 FormatSeconds(m.floor_seconds), Ratio(m)));
        output.Flush();
      }
    }
  }

  void Decode(bench::Runner& runner, const std::vector<int64_t>& batches,
              const std::vector<int64_t>& contexts, Output& output, Json* json) {
    (*json)["decode"] = Json::array();
    if (!json_) {
      output.Write(fmt::format(
          "\n{:<10}{:>9}{:>7}{:>7}{:>12}{:>11}{:>12}{:>9}{:>11}{:>7}{:>11}{:>9}{:>7}{:>11}{:>10}"
          "{:>11}   ({} KV rows)\n",
          "decode", "context", "batch", "graph", "step", "tok/s", "bytes/step", "GB/s", "link/step",
          "GB/s", "floor", "x floor", "hits", "rows/step", "CPU/step", "GPU mem", fill_));
      output.Flush();
    }
    for (const int64_t context : contexts) {
      for (const int64_t batch : batches) {
        for (const Plan& plan : plans_) {
          for (const bool graphs : {true, false}) {
            if (graphs_ == (graphs ? "off" : "on")) continue;
            runner.UseGraphs(graphs);
            bench::Measurement m;
            {
              ProgressBar bar(fmt::format("Decode {} x {} {}", batch, context, plan.policy),
                              batch * context + MoreTokens(), "tokens");
              m = runner.Decode(*plan.cache, batch, context,
                                [&](int64_t done, int64_t) { bar.Update(done); });
            }
            Report(plan, graphs, m, output, json);
          }
        }
      }
    }
  }

  void Report(const Plan& plan, bool graphs, const bench::Measurement& m, Output& output,
              Json* json) const {
    const double rate = static_cast<double>(m.batch) / m.seconds;
    const double gbps = m.cost.bytes / m.seconds / 1e9;
    const double link_gbps = m.cost.link_bytes / m.seconds / 1e9;
    const double moved =
        static_cast<double>(m.kv.miss.rows + m.kv.prefetch.rows + m.kv.stream.rows) /
        static_cast<double>(options_.decode_steps);
    Json entry = {{"policy", plan.policy},
                  {"batch", m.batch},
                  {"context", m.context},
                  {"graph", gpu_ && graphs},
                  {"ms_per_step", m.seconds * 1e3},
                  {"spread", m.spread},
                  {"tokens_per_s", rate},
                  {"bytes_per_step", m.cost.bytes},
                  {"flops_per_step", m.cost.flops},
                  {"gb_per_s", gbps},
                  {"link_bytes_per_step", m.cost.link_bytes},
                  {"link_gb_per_s", link_gbps},
                  {"floor_ms", m.floor_seconds * 1e3},
                  {"ratio_to_floor", Ratio(m)},
                  {"cpu_seconds_per_step", m.cpu_seconds},
                  {"device_memory_bytes", m.device_memory}};
    if (m.kv.lookups > 0) {
      entry["hit_ratio"] = HitRatio(m.kv.hits, m.kv.lookups);
    }
    if (moved > 0 || m.kv.lookups > 0) entry["rows_moved_per_step"] = moved;
    if (m.kv.rows_recomputed > 0) {
      entry["rows_recomputed_per_step"] =
          static_cast<double>(m.kv.rows_recomputed) / static_cast<double>(options_.decode_steps);
    }
    if (m.breakdown.marks > 0) entry["breakdown"] = BreakdownJson(m.breakdown);
    (*json)["decode"].push_back(std::move(entry));
    if (json_) return;
    const std::string hits =
        m.kv.lookups > 0 ? fmt::format("{:.0f}%", 100 * HitRatio(m.kv.hits, m.kv.lookups)) : "-";
    const bool link = m.cost.link_bytes > 0 && gpu_;
    output.Write(fmt::format(
        "{:<10}{:>9}{:>7}{:>7}{:>12}{:>11.1f}{:>12}{:>9.1f}{:>11}{:>7}{:>11}{:>9.2f}{:>7}{:>11.0f}"
        "{:>10}{:>11}\n",
        plan.policy, m.context, m.batch,
        !gpu_    ? "-"
        : graphs ? "on"
                 : "off",
        FormatSeconds(m.seconds), rate, FormatBytes(static_cast<uint64_t>(m.cost.bytes)), gbps,
        link ? FormatBytes(static_cast<uint64_t>(m.cost.link_bytes)) : "-",
        link ? fmt::format("{:.1f}", link_gbps) : "-", FormatSeconds(m.floor_seconds), Ratio(m),
        hits, moved, FormatSeconds(m.cpu_seconds),
        m.device_memory > 0 ? FormatBytes(m.device_memory) : "-"));
    if (m.breakdown.marks > 0) output.Write(BreakdownText(m));
    output.Flush();
  }

  static Json BreakdownJson(const bench::Breakdown& breakdown) {
    Json json;
    for (size_t i = kSections; i-- > 0;) {
      json[std::string(litecache::Name(static_cast<Section>(i))) + "_ms"] =
          breakdown.seconds[i] * 1e3;
    }
    json["marks"] = breakdown.marks;
    json["mark_us"] = breakdown.mark_seconds * 1e6;
    return json;
  }

  // A line: of the step, and of a layer (whose products and rest include the logits').
  std::string BreakdownText(const bench::Measurement& m) const {
    std::string text = "  a layer:";
    const auto layers = static_cast<double>(decoder_->config().layers);
    for (size_t i = kSections; i-- > 0;) {
      const double seconds = m.breakdown.seconds[i];
      if (seconds == 0) continue;
      text += fmt::format(" {} {} ({:.0f}%),", litecache::Name(static_cast<Section>(i)),
                          FormatSeconds(seconds / layers), 100 * seconds / m.seconds);
    }
    return text + fmt::format(" by {} marks a step of {}, taken off\n", m.breakdown.marks,
                              FormatSeconds(m.breakdown.mark_seconds));
  }

  EngineFlags flags_;
  bench::RunOptions options_;
  std::string shape_;
  std::string weights_ = "random";
  std::string batches_ = "1";
  std::string contexts_ = "512";
  std::string only_;
  std::string policies_;
  std::string text_;
  std::string fill_ = "synthetic";
  bool json_ = false;
  std::optional<double> hit_ratio_, overlap_;
  std::string graphs_ = "on";

  bool gpu_ = false;
  int threads_ = 1;      // of the CPU
  uint64_t budget_ = 0;  // of both memories
  kv::TierBytes caps_;
  std::string name_;
  std::unique_ptr<model::Decoder> decoder_;
  std::filesystem::path directory_;  // empty for --shape
  std::vector<Plan> plans_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace litecache::cli
