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
           "A model that fits the processor's caches can be faster than the floor.\n\n"
           "  litecache bench --shape llama3.2-1b --batch 1,4 --context 512,4096\n"
           "  litecache bench --model DIR --context 16k --only decode --json\n";
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
    app.add_option("--fill", fill_, "KV rows before decode: synthetic or prefill")
        ->type_name("HOW")
        ->check(CLI::IsMember({"synthetic", "prefill"}).description(""))
        ->capture_default_str();
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
    LoadModel(machine);
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

  void LoadModel(const Machine& machine) {
    Device& device = machine.compute();
    const auto most = [](const Device& d) {
      return static_cast<uint64_t>(0.9 * static_cast<double>(d.Info().free_memory));
    };
    budget_ = flags_.memory.value > 0 ? flags_.memory.value : most(*machine.cpu);
    if (machine.gpu != nullptr) {
      uint64_t& gpu = flags_.kv.device_memory.value;
      if (gpu == 0) gpu = most(*machine.gpu);
      budget_ += gpu;
    }
    model::LoadOptions load;
    load.compute_f32 = flags_.dtype == "f32";
    std::unique_ptr<ProgressBar> bar;
    load.progress = [&bar](int64_t done, int64_t total) {
      if (bar == nullptr) bar = std::make_unique<ProgressBar>("Loading", total, "B");
      bar->Update(done);
    };
    if (!shape_.empty()) {
      name_ = shape_;
      const auto config = model::ModelConfig::FromShapeName(shape_);
      engine::CheckWeightsFit(shape_,
                              static_cast<uint64_t>(config.parameters()) *
                                  SizeOf(load.compute_f32 ? DType::kF32 : config.weight_dtype),
                              budget_);
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
    if (text_.empty()) return;
    if (directory_.empty()) throw UsageError("--text needs a model with a tokenizer: --model DIR");
    options_.tokens = tokenizer::Tokenizer::FromDirectory(directory_)->Encode(ReadInput(text_));
    if (options_.tokens.empty()) throw InvalidArgument("--text {}: the file has no tokens", text_);
  }

  // Before minutes are spent on the cells that fit.
  void CheckFits(const bench::Runner& runner, const Plan& plan, const std::vector<int64_t>& batches,
                 const std::vector<int64_t>& contexts) const {
    const int64_t batch = *std::max_element(batches.begin(), batches.end());
    const int64_t context = *std::max_element(contexts.begin(), contexts.end());
    const bool decode = only_ != "prefill";
    const int64_t tokens = context + (decode ? options_.decode_steps + 2 : 0);
    if (tokens > decoder_->config().max_context) {
      throw InvalidArgument("--context {}: {} tokens are needed, and the model has a context of {}",
                            context, tokens, decoder_->config().max_context);
    }
    const kv::TierBytes kv = runner.DecodeKvBytes(*plan.cache, decode ? batch : 1, context);
    const uint64_t fixed =
        decoder_->weight_bytes() + decoder_->WorkspaceBytes(flags_.prefill_chunk, 1);
    const uint64_t device = flags_.kv.device_memory.value;
    const uint64_t host = flags_.kv.host_memory.value;
    if (fixed + kv.total() > budget_ || (device > 0 && fixed + kv.device > device) ||
        (host > 0 && kv.host > host)) {
      throw CapacityError(
          "batch {} at context {} takes {} for weights and buffers and {} for KV, and the memory "
          "budget is {}{}{}: lower --batch or --context, or raise --memory",
          batch, context, FormatBytes(fixed), kv::FormatTiers(kv), FormatBytes(budget_),
          device > 0 ? fmt::format(", {} of it on the device", FormatBytes(device)) : "",
          host > 0 ? fmt::format(", {} for the host store", FormatBytes(host)) : "");
    }
  }

  Json Header(const Device& device, const bench::MachineRates& rates, DType dtype) const {
    const auto& config = decoder_->config();
    return {{"model",
             {{"name", name_},
              {"family", model::Name(config.family)},
              {"parameters", config.parameters()},
              {"weight_bytes", decoder_->weight_bytes()},
              {"kv_bytes_per_token", config.kv_layout(dtype).token_bytes()}}},
            {"machine",
             {{"device", device.Info().name},
              {"threads", device.Info().parallelism},
              {"gb_per_s", rates.bytes_per_second / 1e9},
              {"gflop_per_s", rates.flops_per_second / 1e9},
              {"link_gb_per_s", rates.link_bytes_per_second / 1e9},
              {"arithmetic", litecache::Name(dtype)}}},
            {"fill", fill_}};
  }

  std::string HeaderText(const Device& device, const bench::MachineRates& rates,
                         DType dtype) const {
    return fmt::format(
        "{} on {}\nmemory {:.1f} GB/s, {}{} arithmetic {:.0f} GFLOP/s (measured); "
        "weights {}\n",
        name_, device.Info().name, rates.bytes_per_second / 1e9,
        rates.link_bytes_per_second > 0
            ? fmt::format("link {:.1f} GB/s, ", rates.link_bytes_per_second / 1e9)
            : "",
        litecache::Name(dtype), rates.flops_per_second / 1e9,
        FormatBytes(decoder_->weight_bytes()));
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
          "\n{:<10}{:>9}{:>7}{:>12}{:>12}{:>12}{:>9}{:>12}{:>9}{:>7}{:>10}   ({} KV rows)\n",
          "decode", "context", "batch", "step", "tok/s", "bytes/step", "GB/s", "floor", "x floor",
          "hits", "rows/step", fill_));
      output.Flush();
    }
    for (const int64_t context : contexts) {
      for (const int64_t batch : batches) {
        for (const Plan& plan : plans_) {
          bench::Measurement m;
          {
            ProgressBar bar(fmt::format("Decode {} x {} {}", batch, context, plan.policy),
                            batch * context + options_.decode_steps + 2, "tokens");
            m = runner.Decode(*plan.cache, batch, context,
                              [&](int64_t done, int64_t) { bar.Update(done); });
          }
          Report(plan, m, output, json);
        }
      }
    }
  }

  void Report(const Plan& plan, const bench::Measurement& m, Output& output, Json* json) const {
    const double rate = static_cast<double>(m.batch) / m.seconds;
    const double gbps = m.cost.bytes / m.seconds / 1e9;
    const double moved =
        static_cast<double>(m.kv.miss.rows + m.kv.prefetch.rows + m.kv.stream.rows) /
        static_cast<double>(options_.decode_steps);
    Json entry = {{"policy", plan.policy},
                  {"batch", m.batch},
                  {"context", m.context},
                  {"ms_per_step", m.seconds * 1e3},
                  {"spread", m.spread},
                  {"tokens_per_s", rate},
                  {"bytes_per_step", m.cost.bytes},
                  {"flops_per_step", m.cost.flops},
                  {"gb_per_s", gbps},
                  {"link_bytes_per_step", m.cost.link_bytes},
                  {"floor_ms", m.floor_seconds * 1e3},
                  {"ratio_to_floor", Ratio(m)}};
    if (m.kv.lookups > 0) {
      entry["hit_ratio"] = HitRatio(m.kv.hits, m.kv.lookups);
    }
    if (moved > 0 || m.kv.lookups > 0) entry["rows_moved_per_step"] = moved;
    if (m.kv.rows_recomputed > 0) {
      entry["rows_recomputed_per_step"] =
          static_cast<double>(m.kv.rows_recomputed) / static_cast<double>(options_.decode_steps);
    }
    (*json)["decode"].push_back(std::move(entry));
    if (json_) return;
    const std::string hits =
        m.kv.lookups > 0 ? fmt::format("{:.0f}%", 100 * HitRatio(m.kv.hits, m.kv.lookups)) : "-";
    output.Write(
        fmt::format("{:<10}{:>9}{:>7}{:>12}{:>12.1f}{:>12}{:>9.1f}{:>12}{:>9.2f}{:>7}{:>10.0f}\n",
                    plan.policy, m.context, m.batch, FormatSeconds(m.seconds), rate,
                    FormatBytes(static_cast<uint64_t>(m.cost.bytes)), gbps,
                    FormatSeconds(m.floor_seconds), Ratio(m), hits, moved));
    output.Flush();
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

  uint64_t budget_ = 0;
  std::string name_;
  std::unique_ptr<model::Decoder> decoder_;
  std::filesystem::path directory_;  // empty for --shape
  std::vector<Plan> plans_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace litecache::cli
