// Engine: a model's files, its memory plan, and the core that runs it.

#include "litecache/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "device/machine.h"
#include "engine/core.h"
#include "engine/deterministic.h"
#include "engine/engine_plan.h"
#include "engine/kv_profile.h"
#include "engine/memory_plan.h"
#include "engine/prefill_chunk.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "io/hub.h"
#include "kv/cache_plan.h"
#include "model/decoder.h"
#include "model/fingerprint.h"
#include "model/weight_placement.h"
#include "tokenizer/placeholder.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache {
namespace {

using engine::Parts;

// Share of the free memory that a budget takes by default; the rest is for the program itself and
// for programs started later.
constexpr double kDefaultShare = 0.9;

class TokenizerText final : public engine::TokenText {
 public:
  TokenizerText(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, bool skip_special)
      : stream_(std::move(tokenizer), skip_special) {}
  std::string Add(int32_t token) override { return stream_.Add(token); }
  std::string Flush() override { return stream_.Flush(); }

 private:
  tokenizer::StreamDecoder stream_;
};

Parts Begin(const EngineOptions& options, std::string name) {
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
  if (options.deterministic) MakeBatchInvariant(*parts.stream);
  // Measured before the weights are loaded; otherwise mapped files would count twice.
  parts.budget =
      options.memory > 0
          ? options.memory
          : static_cast<uint64_t>(kDefaultShare *
                                  static_cast<double>(parts.machine.cpu->Info().free_memory));
  if (parts.machine.gpu != nullptr) {
    const uint64_t free = parts.machine.gpu->Info().free_memory;
    if (options.kv.device_memory > free) {
      throw CapacityError("device_memory = {}: {} has only {} free",
                          FormatBytes(options.kv.device_memory), parts.machine.gpu->Info().name,
                          FormatBytes(free));
    }
    parts.gpu_budget = options.kv.device_memory > 0
                           ? options.kv.device_memory
                           : static_cast<uint64_t>(kDefaultShare * static_cast<double>(free));
  }
  return parts;
}

// Called before the weights are read.
void CheckWeights(const Parts& parts, const model::ModelConfig& config,
                  const EngineOptions& options) {
  engine::CheckLayersAhead(options, config);
  const model::LoadOptions load = engine::WeightOptions(options);
  const auto checkpoint = parts.directory.empty() ? nullptr
                                                  : std::make_shared<const io::Checkpoint>(
                                                        parts.directory, config.experts.stacked);
  const auto weights = model::EstimateWeights(
      config, {config, load.dtype, load.quantization, checkpoint},
      {load.weights_on_device, load.experts_on_device}, parts.machine.gpu != nullptr);
  engine::CheckWeightsFit(parts.name, weights.device, parts.weights_budget(), parts.gpu_budget > 0);
  if (weights.host > 0) engine::CheckWeightsFit(parts.name, weights.host, parts.budget);
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(Parts parts, const EngineOptions& options)
      : parts_(std::move(parts)),
        plan_(engine::MakePlan(parts_, options)),
        kv_notes_(engine::DescribePlan(*plan_.cache, plan_.kv, plan_.profile.get())),
        cache_(plan_.cache->Create(parts_.machine.compute(), plan_.memory.kv)) {
    for (const std::string& note : kv_notes_) LogInfo("KV cache: {}", note);
    if (const auto warning = engine::PlanWarning(*plan_.cache, plan_.profile.get());
        !warning.empty()) {
      LogWarning("KV cache: {}", warning);
    }
    engine::Backend backend;
    backend.device = &parts_.machine.compute();
    backend.stream = parts_.stream.get();
    backend.decoder = parts_.decoder.get();
    backend.cache = cache_.get();
    backend.pool = &parts_.machine.cpu->pool();
    backend.eos_ids = parts_.eos_ids;
    if (parts_.tokenizer != nullptr) {
      backend.token_text = [this](bool skip_special) {
        return std::make_unique<TokenizerText>(parts_.tokenizer, skip_special);
      };
    }
    core_ = std::make_unique<engine::Core>(
        backend, engine::CoreOptions{
                     plan_.memory.context_limit, plan_.memory.max_batch, plan_.memory.prefill_chunk,
                     engine::PrefillChunkBesideDecode(options.prefill_chunk_beside_decode,
                                                      parts_.machine.compute().type(),
                                                      plan_.memory.prefill_chunk),
                     plan_.score_rows, Prefixes(options), /*sample_on_device=*/true,
                     options.deterministic ? engine::DeterministicRows(
                                                 *parts_.decoder, parts_.device(), plan_.kv.policy)
                                           : 0,
                     DraftTokens(options)});
  }

  const model::ModelConfig& config() const override { return parts_.decoder->config(); }
  const tokenizer::Tokenizer& tokenizer() const override {
    if (parts_.tokenizer == nullptr) {
      throw Error(
          fmt::format("{} has no tokenizer, so text can be neither read nor written; Transformers' "
                      "save_pretrained writes a tokenizer.json",
                      parts_.name));
    }
    return *parts_.tokenizer;
  }
  const std::filesystem::path& directory() const override { return parts_.directory; }
  const MemoryPlan& memory_plan() const override { return plan_.memory; }
  const std::vector<std::string>& kv_notes() const override { return kv_notes_; }
  EngineStats Stats() const override { return core_->Stats(); }
  const SamplingParams& default_sampling() const override { return parts_.sampling; }

  std::shared_ptr<RequestHandle> Submit(Request request) override {
    const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    try {
      return core_->Submit(std::move(request));
    } catch (const CapacityError& error) {
      if (plan_.alternative.empty() || tokens > plan_.memory.context_limit) throw;
      throw CapacityError("{}; or {}", error.what(), plan_.alternative);
    }
  }
  ScoreResult Score(const ScoreRequest& request,
                    const std::function<void(int64_t, int64_t)>& progress) override {
    return core_->Score(request, progress);
  }

  std::string Description() const override {
    const double parameters = static_cast<double>(config().parameters());
    const auto [value, unit] = parameters >= 1e9   ? std::pair{parameters / 1e9, "B"}
                               : parameters >= 1e6 ? std::pair{parameters / 1e6, "M"}
                                                   : std::pair{parameters / 1e3, "K"};
    return fmt::format("{}, {:.{}f}{} parameters, {}", Name(config().family), value,
                       value < 9.95    ? 2
                       : value < 99.95 ? 1
                                       : 0,
                       unit, Name(config().weight_dtype));
  }

 private:
  int64_t DraftTokens(const EngineOptions& options) const {
    if (options.draft == "off") return 0;
    if (parts_.machine.gpu != nullptr) {
      throw Unsupported("draft = {}: drafts run on the CPU only; leave it out, or use device = cpu",
                        options.draft);
    }
    return options.draft_tokens;
  }
  std::optional<engine::PrefixOptions> Prefixes(const EngineOptions& options) const {
    if (!options.prefix_cache) return std::nullopt;
    engine::PrefixOptions prefixes{options.prefix_store, options.prefix_store_bytes, ""};
    if (options.deterministic) prefixes.chunk = plan_.memory.prefill_chunk;
    if (prefixes.store.empty()) return prefixes;
    const std::string cache = plan_.cache->Identity();
    if (cache.empty()) {
      throw Unsupported("prefix_store: KV policy '{}' cannot write its rows to a disk here",
                        plan_.kv.policy);
    }
    prefixes.space = fmt::format("{}; {}; {}{}", parts_.identity(), options.dtype, cache,
                                 parts_.machine.gpu != nullptr ? "; cuda" : "");
    if (!options.quantize.empty()) prefixes.space += "; " + options.quantize;
    if (prefixes.chunk > 0) prefixes.space += fmt::format("; chunks of {}", prefixes.chunk);
    return prefixes;
  }

  Parts parts_;
  engine::Plan plan_;
  std::vector<std::string> kv_notes_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<engine::Core> core_;  // declared last: its thread ends before the other members
};

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

}  // namespace

std::unique_ptr<Engine> Engine::Load(const std::string& model, const EngineOptions& options) {
  Parts parts = Begin(options, model);
  parts.directory = io::ResolveModel(model);
  parts.identity = [directory = parts.directory, context = options.max_context] {
    // The fingerprint only samples the weights; file times reveal changes between the samples.
    return model::Fingerprint(directory, context) + " " + io::Checkpoint(directory).FileVersions();
  };
  const auto config = model::ModelConfig::FromModel(parts.directory);
  // Small files come first: their errors appear at once, not after gigabytes have been read.
  parts.tokenizer = tokenizer::Tokenizer::FindIn(parts.directory);
  const auto generation = io::GenerationConfig::FromModel(parts.directory);
  parts.sampling = DefaultSampling(generation);
  parts.sampling.Validate();
  parts.eos_ids = MergeEosIds(generation, config, parts.tokenizer.get());
  CheckWeights(parts, config, options);

  model::LoadOptions load = engine::WeightOptions(options);
  if (parts.machine.gpu != nullptr && config.weight_dtype == DType::kF16 && !load.dtype &&
      load.quantization.format == nullptr) {
    LogWarning("{}: f16 weights take twice their memory on a GPU, as f32; --dtype bf16 rounds them",
               parts.name);
  }
  {
    const LoadingBar bar(options, &load);
    parts.decoder = model::LoadDecoder(parts.machine.compute(), parts.directory, load);
  }
  parts.weights_mapped = parts.machine.gpu == nullptr && load.quantization.format == nullptr &&
                         !config.quantization && !model::ConvertsWeights(config, load.dtype);
  return std::make_unique<EngineImpl>(std::move(parts), options);
}

std::unique_ptr<Engine> Engine::Random(const std::string& shape, uint64_t seed,
                                       const EngineOptions& options) {
  Parts parts = Begin(options, shape);
  parts.identity = [shape, seed] { return fmt::format("random {} {}", shape, seed); };
  const auto config = model::ModelConfig::FromShapeName(shape);
  parts.tokenizer = tokenizer::PlaceholderTokenizer(config.vocab);
  CheckWeights(parts, config, options);
  model::LoadOptions load = engine::WeightOptions(options);
  {
    const LoadingBar bar(options, &load);
    parts.decoder = model::RandomDecoder(parts.machine.compute(), config, seed, load);
  }
  parts.eos_ids = config.eos_ids;
  return std::make_unique<EngineImpl>(std::move(parts), options);
}

}  // namespace litecache
