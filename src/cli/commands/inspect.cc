// litecache inspect: the shape of a model, and how its memory would be used.
#include <fmt/core.h>

#include <filesystem>
#include <map>

#include "base/join.h"
#include "base/units.h"
#include "cli/command.h"
#include "cli/config_report.h"
#include "cli/exit_codes.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "device/cuda/cuda_devices.h"
#include "device/machine.h"
#include "engine/engine_plan.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/shape_decoder.h"
#include "model/shard.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

// What a process takes of a GPU's memory before it allocates any.
constexpr uint64_t kContextBytes = uint64_t{512} << 20;

using Json = nlohmann::ordered_json;
using model::ModelConfig;

class InspectCommand final : public Command {
 public:
  std::string Name() const override { return "inspect"; }
  std::string Summary() const override { return "What a model is, and where its memory would go."; }
  std::string Notes() const override {
    return "A model's weights are mapped, not read. For --shape nothing is allocated; with "
           "--device cuda and --device-memory, or with --card, it says what a GPU would hold, on "
           "any machine.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache inspect --model DIR",
            "litecache inspect --shape llama3-8b --memory 24GiB --json",
            "litecache inspect --shape llama3.1-8b --card 24GiB --kv-policy litecache"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, false);
    std::string names;
    for (const auto& name : ModelConfig::ShapeNames()) names += (names.empty() ? "" : ", ") + name;
    app.add_option("--shape", shape_, "A published shape instead of a model: " + names)
        ->type_name("NAME");
    app.add_option("--card", card_,
                   "With --shape: plan for a GPU with this much memory, e.g. 24GiB, and print the "
                   "largest context under each policy")
        ->type_name("SIZE");
    app.add_flag("--json", json_, "Print JSON");
    flags_.DeclareRun(app);
  }

  int Run(const std::vector<std::string>&) override {
    if (!shape_.empty()) {
      // --model may come from the environment; the command line takes precedence.
      Emit(ShapeReport());
    } else if (!flags_.model.empty()) {
      Emit(ModelReport());
    } else {
      throw UsageError("inspect needs --model DIR or --shape NAME");
    }
    return kOk;
  }

 private:
  struct Report {
    std::string text;
    Json json;
  };

  Report ModelReport() const {
    const auto engine = Engine::Load(flags_.model, flags_.ToEngineOptions());
    const MemoryPlan& plan = engine->memory_plan();
    Report report;
    report.text = engine->directory().string() + "\n" + ConfigText(engine->config());
    report.json = ConfigJson(engine->config());
    report.json["directory"] = engine->directory().string();
    AddWeights(engine->directory(), engine->config(), &report);
    AddTokenizer(*engine, &report);
    report.text += plan.ToString();
    report.json["memory"] = {
        {"budget", plan.total},
        {"device_budget", plan.device_total},
        {"host_budget", plan.host_total},
        {"weights", plan.weights},
        {"host_weights", plan.host_weights},
        {"weights_mapped", plan.weights_mapped},
        {"draft", plan.draft.total()},
        {"buffers", plan.buffers},
        {"kv", {{"policy", plan.kv_policy}, {"device", plan.kv.device}, {"host", plan.kv.host}}},
        {"kv_per_token", plan.kv_per_token},
        {"largest_context", plan.largest_context},
        {"max_batch", plan.max_batch},
        {"resident_heads", plan.resident_heads}};
    return report;
  }

  // The tensors of the model's files by type, and in the JSON one by one.
  static void AddWeights(const std::filesystem::path& model, const ModelConfig& config,
                         Report* report) {
    struct Sum {
      int64_t tensors = 0;
      uint64_t bytes = 0;
    };
    std::map<std::string, Sum> types;
    double values = 0;
    Sum all;
    Json& tensors = report->json["tensors"] = Json::array();
    const io::Checkpoint checkpoint(model);
    for (const std::string& name : checkpoint.TensorNames()) {
      const io::TensorInfo& info = *checkpoint.Find(name).info;
      for (Sum* sum : {&types[info.dtype], &all}) {
        ++sum->tensors;
        sum->bytes += info.bytes();
      }
      double count = 1;
      for (const int64_t extent : info.shape) count *= static_cast<double>(extent);
      values += count;
      tensors.push_back(
          {{"name", name}, {"type", info.dtype}, {"shape", info.shape}, {"bytes", info.bytes()}});
    }
    // A value of a packed tensor is several weights.
    if (config.quantization) values = static_cast<double>(config.parameters());
    const double bits = values > 0 ? 8 * static_cast<double>(all.bytes) / values : 0;
    std::vector<std::string> parts;
    parts.reserve(types.size());
    for (const auto& [type, sum] : types) {
      parts.push_back(fmt::format("{} {} in {} tensor{}", FormatBytes(sum.bytes), type, sum.tensors,
                                  sum.tensors == 1 ? "" : "s"));
    }
    report->text += fmt::format("  {:<14}{:.2f} bits per weight: {}\n", "files", bits, Join(parts));
    report->json["bits_per_weight"] = bits;
  }

  static void AddTokenizer(const Engine& engine, Report* report) {
    const auto tokenizer = tokenizer::Tokenizer::FindIn(engine.directory());
    if (tokenizer == nullptr) {
      report->text += fmt::format("  {:<14}none\n", "tokenizer");
      report->json["tokenizer"] = nullptr;
    } else {
      const auto id = [](std::optional<int32_t> value) {
        return value ? fmt::format("{}", *value) : std::string("none");
      };
      report->text +=
          fmt::format("  {:<14}{} tokens, begin {}, end {}\n", "tokenizer", tokenizer->vocab_size(),
                      id(tokenizer->bos_id()), id(tokenizer->eos_id()));
      const auto json_id = [](std::optional<int32_t> value) {
        return value ? Json(*value) : Json();
      };
      report->json["tokenizer"] = {{"vocab_size", tokenizer->vocab_size()},
                                   {"bos_id", json_id(tokenizer->bos_id())},
                                   {"eos_id", json_id(tokenizer->eos_id())}};
    }
    const bool has_template = tokenizer::ChatTemplate::FindIn(engine.directory()).has_value();
    report->text += fmt::format("  {:<14}{}\n", "chat template", has_template ? "yes" : "no");
    report->json["chat_template"] = has_template;
  }

  // Sets the engine's budgets, also for a GPU that this machine does not have.
  void SetBudgets(engine::Parts* parts, const EngineOptions& options) const {
    const auto most = [](uint64_t free) {
      return static_cast<uint64_t>(0.9 * static_cast<double>(free));
    };
    parts->budget =
        options.memory > 0 ? options.memory : most(parts->machine.cpu->Info().free_memory);
    const CudaDevices found = FindCudaDevices();
    if (card_.value > 0) {
      parts->gpu_budget = most(card_.value - std::min(card_.value, kContextBytes));
    } else if (options.device.starts_with("cuda") ||
               (options.device == "auto" && !found.devices.empty())) {
      parts->gpu_budget = options.kv.device_memory;
      if (parts->gpu_budget == 0 && found.devices.empty()) {
        throw UsageError("--device {} without a GPU ({}) needs --device-memory or --card",
                         options.device, found.reason);
      }
      if (parts->gpu_budget == 0) parts->gpu_budget = most(found.devices.front().free_memory);
    }
    if (parts->gpu_budget == 0 &&
        (options.weights_on_device < 1 || options.experts_on_device < 1)) {
      throw UsageError("--{}-on-device requires --device cuda",
                       options.weights_on_device < 1 ? "weights" : "experts");
    }
  }

  // Says what each policy has room for on --card.
  void AddCard(const engine::Parts& parts, EngineOptions options, Report* report) const {
    report->text += fmt::format(
        "On a card of {}, of which the driver takes about {} and a plan 90% of the rest:\n",
        FormatBytes(card_.value), FormatBytes(kContextBytes));
    for (const char* policy : {"full", "litecache"}) {
      options.kv.policy = policy;
      int64_t context = 0;
      std::string text = "no context fits";
      try {
        const MemoryPlan plan = engine::MakePlan(parts, options).memory;
        context = plan.largest_context;
        text = fmt::format("{} tokens{}", context,
                           plan.kv_largest.host > 0
                               ? fmt::format(" with {} of host memory",
                                             FormatBytes(plan.kv_largest.host + plan.host_weights))
                               : "");
      } catch (const CapacityError&) {
      }
      report->text += fmt::format("  {:<10}{}\n", policy, text);
      report->json["card"][policy] = context;
    }
  }

  Report ShapeReport() const {
    const auto config = ModelConfig::FromShapeName(shape_);
    const EngineOptions options = flags_.ToEngineOptions();
    engine::Parts parts;
    parts.name = shape_;
    parts.machine = OpenMachine("cpu", options.threads);
    parts.stream = parts.machine.compute().CreateStream();
    SetBudgets(&parts, options);
    parts.budget /= static_cast<uint64_t>(options.tensor_parallel);
    // With tensor parallelism, the plan is that of one rank.
    const model::LoadOptions load = engine::WeightOptions(options);
    const ModelConfig part = model::ShardOf(
        config, {config, load.dtype, load.quantization, nullptr}, 0, options.tensor_parallel);
    parts.decoder =
        model::MakeShapeDecoder(parts.machine.compute(), part, load, parts.gpu_budget > 0);
    Report report;
    report.text = shape_ + "\n" + ConfigText(config);
    report.json = ConfigJson(config);
    if (!options.quantize.empty()) {
      // Wherever they are: layers and experts in host memory have copies on the device.
      model::LoadOptions all = load;
      all.weights_on_device = all.experts_on_device = 1;
      const auto whole =
          model::MakeShapeDecoder(parts.machine.compute(), config, all, parts.gpu_budget > 0);
      const double bits =
          8 * static_cast<double>(whole->weight_bytes()) / static_cast<double>(config.parameters());
      report.text +=
          fmt::format("  {:<14}{}: {:.2f} bits per weight\n", "quantized", options.quantize, bits);
      report.json["quantize"] = options.quantize;
      report.json["bits_per_weight"] = bits;
    }
    if (options.tensor_parallel > 1) {
      const std::string experts =
          part.experts.own.count == 0
              ? ""
              : fmt::format(", {} of {} experts", part.experts.own.count, config.experts.count);
      report.text += fmt::format("  {:<14}{} of {} query heads, {} of {} KV heads{}; its memory:\n",
                                 "each rank", part.q_heads, config.q_heads, part.kv_heads,
                                 config.kv_heads, experts);
      report.json["ranks"] = options.tensor_parallel;
    }
    report.json["shape"] = shape_;
    Json& memory = report.json["memory"];
    memory = {{"budget", parts.budget + parts.gpu_budget},
              {"weights", parts.decoder->weight_bytes()},
              {"host_weights", parts.decoder->host_weight_bytes()},
              {"kv_per_token", part.kv_layout(parts.decoder->kv_dtype()).token_bytes()},
              {"largest_context", 0}};
    try {
      const MemoryPlan plan = engine::MakePlan(parts, options).memory;
      report.text += plan.ToString();
      memory["device_budget"] = plan.device_total;
      memory["host_budget"] = plan.host_total;
      memory["buffers"] = plan.buffers;
      memory["policy"] = plan.kv_policy;
      memory["largest_context"] = plan.largest_context;
      memory["max_batch"] = plan.max_batch;
      memory["resident_heads"] = plan.resident_heads;
      for (const NamedBytes& part : plan.kv_parts) {
        memory["kv_device_parts"][std::string(part.name)] = part.bytes;
      }
    } catch (const CapacityError& error) {
      report.text += std::string(error.what()) + "\n";
      memory["error"] = error.what();
    }
    if (card_.value > 0) AddCard(parts, options, &report);
    return report;
  }

  void Emit(const Report& report) const {
    Output output;
    output.Write(json_ ? ToJsonLine(report.json) + "\n" : report.text);
    output.Flush();
  }

  EngineFlags flags_;
  std::string shape_;
  ByteCount card_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() { return std::make_unique<InspectCommand>(); }

}  // namespace litecache::cli
