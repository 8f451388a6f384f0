#include "engine/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/progress.h"
#include "base/units.h"
#include "device/machine.h"
#include "engine/draft/drafters.h"
#include "engine/draft/load_draft.h"
#include "engine/memory_plan.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "io/hub.h"
#include "model/fingerprint.h"
#include "model/shard.h"
#include "model/weight_placement.h"
#include "parallel/process_group.h"
#include "tokenizer/placeholder.h"

namespace litecache::engine {
namespace {

// Share of the free memory that a budget takes by default; the rest is for the program itself and
// for programs started later.
uint64_t ShareOf(uint64_t free) { return free - free / 10; }

Parts Begin(const EngineOptions& options, std::string name,
            std::shared_ptr<parallel::ProcessGroup> group) {
  options.Validate();
  if (options.threads > AvailableCores()) {
    LogWarning(
        "--threads {}: this process may use {} cores, and threads that wait for a core slow the "
        "others down",
        options.threads, AvailableCores());
  }
  Parts parts;
  parts.name = std::move(name);
  parts.machine = OpenMachine(options.device, options.threads);
  for (const auto& [name, share] : {std::pair("weights_on_device", options.weights_on_device),
                                    {"experts_on_device", options.experts_on_device}}) {
    if (parts.machine.gpu != nullptr || share == 1) continue;
    throw InvalidArgument(
        "{} = {}: on the CPU all weights are in the host's memory; leave it out, or run on a GPU "
        "(device = cuda)",
        name, share);
  }
  parts.stream = parts.machine.compute().CreateStream();
  // First, so that its memory on a GPU is not among what is free.
  if (group != nullptr) parts.ranks = parallel::Connect(parts.machine.compute(), group);
  if (options.deterministic) MakeBatchInvariant(*parts.stream);
  // Measured before the weights are loaded; otherwise mapped files would count twice.
  parts.budget = options.memory > 0 ? options.memory : DefaultMemory();
  if (parts.machine.gpu != nullptr) {
    const uint64_t free = parts.machine.gpu->Info().free_memory;
    if (options.kv.device_memory > free) {
      throw CapacityError("device_memory = {}: {} has only {} free",
                          FormatBytes(options.kv.device_memory), parts.machine.gpu->Info().name,
                          FormatBytes(free));
    }
    parts.gpu_budget = options.kv.device_memory > 0 ? options.kv.device_memory : ShareOf(free);
  }
  if (group == nullptr) return parts;
  // All ranks plan the same: with the least that one of them has, and a share of the host.
  std::array<uint64_t, 2> budgets = {parts.budget, parts.gpu_budget};
  group->Minimum(budgets);
  parts.budget =
      options.memory > 0 ? parts.budget : budgets[0] / static_cast<uint64_t>(group->ranks());
  parts.gpu_budget = budgets[1];
  parts.group = std::move(group);
  return parts;
}

// Called before the weights are read.
void CheckWeights(const Parts& parts, const model::ModelConfig& config,
                  const EngineOptions& options) {
  CheckLayersAhead(options, config);
  const model::LoadOptions load = WeightOptions(options);
  const auto checkpoint = parts.directory.empty() ? nullptr
                                                  : std::make_shared<const io::Checkpoint>(
                                                        parts.directory, config.experts.stacked);
  const model::WeightTypes types(config, load.dtype, load.quantization, checkpoint);
  const auto weights = model::EstimateWeights(
      parts.ranks == nullptr
          ? config
          : model::ShardOf(config, types, parts.ranks->rank(), parts.ranks->ranks()),
      types, {load.weights_on_device, load.experts_on_device}, parts.machine.gpu != nullptr);
  CheckWeightsFit(parts.name, weights.device, parts.weights_budget(), parts.gpu_budget > 0);
  if (weights.host > 0) CheckWeightsFit(parts.name, weights.host, parts.budget);
}

// The ids that end an answer according to generation_config.json, config.json and the tokenizer.
// They differ in practice: chat models end a turn with a token that config.json does not list.
std::vector<int32_t> MergeEosIds(const io::GenerationConfig& generation,
                                 const model::ModelConfig& config,
                                 const tokenizer::Tokenizer* tokenizer) {
  std::vector<int32_t> ids = generation.eos_ids;
  ids.insert(ids.end(), config.eos_ids.begin(), config.eos_ids.end());
  if (tokenizer != nullptr && tokenizer->eos_id()) ids.push_back(*tokenizer->eos_id());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::erase_if(ids, [&](int32_t id) { return id < 0 || id >= config.vocab; });
  return ids;
}

SamplingParams DefaultSampling(const io::GenerationConfig& generation) {
  SamplingParams params;
  if (generation.temperature) params.temperature = *generation.temperature;
  if (generation.do_sample && !*generation.do_sample) params.temperature = 0;
  if (generation.top_k) params.top_k = static_cast<int>(*generation.top_k);
  if (generation.top_p) params.top_p = *generation.top_p;
  if (generation.min_p) params.min_p = *generation.min_p;
  if (generation.repetition_penalty) params.repetition_penalty = *generation.repetition_penalty;
  return params;
}

// Shows the progress of loading, if the options say so, as long as it lives.
class LoadingBar {
 public:
  LoadingBar(const EngineOptions& options, model::LoadOptions* load) {
    if (!options.show_progress) return;
    load->progress = [this](int64_t done, int64_t total) {
      if (bar_ == nullptr) bar_ = std::make_unique<ProgressBar>("Loading", total, "B");
      bar_->Update(done);
    };
  }
  LoadingBar(const LoadingBar&) = delete;
  LoadingBar& operator=(const LoadingBar&) = delete;

 private:
  std::unique_ptr<ProgressBar> bar_;
};

void LoadFiles(const EngineOptions& options, Parts* parts) {
  parts->directory = io::ResolveModel(parts->name);
  parts->identity = [directory = parts->directory, context = options.max_context] {
    // The fingerprint only samples the weights; file times reveal changes between the samples.
    return model::Fingerprint(directory, context) + " " + io::Checkpoint(directory).FileVersions();
  };
  const auto config = model::ModelConfig::FromModel(parts->directory);
  // Small files come first: their errors appear at once, not after gigabytes have been read.
  parts->tokenizer = tokenizer::Tokenizer::FindIn(parts->directory);
  const auto generation = io::GenerationConfig::FromModel(parts->directory);
  parts->sampling = DefaultSampling(generation);
  parts->sampling.Validate();
  parts->eos_ids = MergeEosIds(generation, config, parts->tokenizer.get());
  CheckWeights(*parts, config, options);

  model::LoadOptions load = WeightOptions(options);
  load.ranks = parts->ranks.get();
  if (parts->machine.gpu != nullptr && config.weight_dtype == DType::kF16 && !load.dtype &&
      load.quantization.format == nullptr) {
    LogWarning("{}: f16 weights take twice their memory on a GPU, as f32; --dtype bf16 rounds them",
               parts->name);
  }
  const LoadingBar bar(options, &load);
  parts->decoder = model::LoadDecoder(parts->machine.compute(), parts->directory, load);
  parts->weights_mapped = parts->machine.gpu == nullptr && load.quantization.format == nullptr &&
                          !config.quantization && !model::ConvertsWeights(config, load.dtype);
}

void MakeRandom(uint64_t seed, const EngineOptions& options, Parts* parts) {
  parts->identity = [shape = parts->name, seed] {
    return fmt::format("random {} {}", shape, seed);
  };
  const auto config = model::ModelConfig::FromShapeName(parts->name);
  parts->tokenizer = tokenizer::PlaceholderTokenizer(config.vocab);
  CheckWeights(*parts, config, options);
  model::LoadOptions load = WeightOptions(options);
  load.ranks = parts->ranks.get();
  const LoadingBar bar(options, &load);
  parts->decoder = model::RandomDecoder(parts->machine.compute(), config, seed, load);
  parts->eos_ids = config.eos_ids;
}

}  // namespace

uint64_t DefaultMemory() { return ShareOf(CpuDevice(1).Info().free_memory); }

Parts LoadParts(const ModelSource& source, const EngineOptions& options,
                std::shared_ptr<parallel::ProcessGroup> group) {
  Parts parts = Begin(options, source.model, std::move(group));
  source.seed ? MakeRandom(*source.seed, options, &parts) : LoadFiles(options, &parts);
  const std::string draft = ParseDrafters(options.draft).model;
  if (draft.empty()) return parts;
  model::LoadOptions load;
  load.dtype = WeightOptions(options).dtype;
  const LoadingBar bar(options, &load);
  const uint64_t weights = parts.decoder->weight_bytes(), budget = parts.weights_budget();
  parts.draft_decoder = LoadDraftModel(parts.machine.compute(), draft, parts.tokenizer.get(), load,
                                       budget > weights ? budget - weights : 0);
  return parts;
}

}  // namespace litecache::engine
