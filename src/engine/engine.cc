// Engine: a model's files, its memory plan, and the core that runs it.

#include "litecache/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/progress.h"
#include "base/units.h"
#include "device/machine.h"
#include "engine/core.h"
#include "engine/device_sampler.h"
#include "engine/gpu_speed.h"
#include "engine/kv_profile.h"
#include "engine/memory_plan.h"
#include "engine/prefill_chunk.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "io/hub.h"
#include "kv/cache_plan.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/profile.h"
#include "model/decoder.h"
#include "model/fingerprint.h"
#include "model/weight_placement.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_scratch_cuda.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache {
namespace {

// Share of the free memory that a budget takes by default; the rest is for the program itself and
// for programs started later.
constexpr double kDefaultShare = 0.9;

// Bytes of the logits of a score job's step. Larger steps run faster; 32 MiB are 64 rows of Llama
// 3's vocabulary, enough for a matrix product to be compute-bound.
constexpr int64_t kScoreLogitBytes = 32 << 20;

class TokenizerText final : public engine::TokenText {
 public:
  TokenizerText(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, bool skip_special)
      : stream_(std::move(tokenizer), skip_special) {}
  std::string Add(int32_t token) override { return stream_.Add(token); }
  std::string Flush() override { return stream_.Flush(); }

 private:
  tokenizer::StreamDecoder stream_;
};

// What the engine is built from, in the order of creation.
struct Parts {
  Machine machine;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<model::Decoder> decoder;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::filesystem::path directory;
  std::string name;                       // for messages
  std::function<std::string()> identity;  // identifies the model; reads a little of its files
  SamplingParams sampling;
  std::vector<int32_t> eos_ids;
  uint64_t budget = 0;      // of host memory
  uint64_t gpu_budget = 0;  // of a GPU's memory, if there is one
  bool weights_mapped = false;

  uint64_t weights_budget() const { return gpu_budget > 0 ? gpu_budget : budget; }
};

Parts Begin(const EngineOptions& options, std::string name) {
  options.Validate();
  Parts parts;
  parts.name = std::move(name);
  parts.machine = OpenMachine(options.device, options.threads);
  if (parts.machine.gpu == nullptr && options.weights_on_device < 1) {
    throw InvalidArgument(
        "weights_on_device = {}: on the CPU all weights are in the host's memory; leave it out, "
        "or run on a GPU (device = cuda)",
        options.weights_on_device);
  }
  parts.stream = parts.machine.compute().CreateStream();
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
  if (options.kv.policy == "litecache") {
    model::CheckLayersAhead(model::WeightPlacement::Of(config.layers, options.weights_on_device),
                            kv::LayersAhead(options.kv));
  }
  const DType dtype = options.dtype == "f32" ? DType::kF32 : config.weight_dtype;
  const auto weights = model::EstimateWeights(config, dtype, options.weights_on_device);
  engine::CheckWeightsFit(parts.name, weights.device, parts.weights_budget(), parts.gpu_budget > 0);
  if (weights.host > 0) engine::CheckWeightsFit(parts.name, weights.host, parts.budget);
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(Parts parts, const EngineOptions& options)
      : parts_(std::move(parts)),
        profile_(engine::WithMeasuredSpeed(
            engine::LoadProfile(options.kv, parts_.directory, Layout()), options.kv,
            parts_.machine.compute(), *parts_.stream, *parts_.decoder)),
        cache_plan_(
            kv::MakeCachePlan(Layout(), options.kv, profile_, parts_.machine.compute().type())),
        prefill_chunk_(PrefillChunk(options)),
        plan_(MakePlan(options)),  // may offload resident heads
        kv_notes_(engine::DescribePlan(*cache_plan_, options.kv, profile_.get())),
        cache_(cache_plan_->Create(parts_.machine.compute(), plan_.kv)) {
    for (const std::string& note : kv_notes_) SPDLOG_INFO("KV cache: {}", note);
    if (const auto warning = engine::PlanWarning(*cache_plan_, profile_.get()); !warning.empty()) {
      SPDLOG_WARN("KV cache: {}", warning);
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
        backend, engine::CoreOptions{plan_.context_limit, options.max_batch, prefill_chunk_,
                                     engine::PrefillChunkBesideDecode(
                                         options.prefill_chunk_beside_decode,
                                         parts_.machine.compute().type(), prefill_chunk_),
                                     ScoreRows(), Prefixes(options)});
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
  const MemoryPlan& memory_plan() const override { return plan_; }
  const std::vector<std::string>& kv_notes() const override { return kv_notes_; }
  EngineStats Stats() const override { return core_->Stats(); }
  const SamplingParams& default_sampling() const override { return parts_.sampling; }

  std::shared_ptr<RequestHandle> Submit(Request request) override {
    return core_->Submit(std::move(request));
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
  kv::Layout Layout() const { return config().kv_layout(parts_.decoder->kv_dtype()); }

  int64_t PrefillChunk(const EngineOptions& options) const {
    if (options.prefill_chunk > 0) return options.prefill_chunk;
    const uint64_t weights = parts_.decoder->weight_bytes();
    const uint64_t budget = parts_.weights_budget();
    return engine::DefaultPrefillChunk(*parts_.decoder, parts_.machine.compute().type(),
                                       budget > weights ? budget - weights : 0);
  }

  int64_t ScoreRows() const {
    const int64_t row_bytes = config().vocab * static_cast<int64_t>(sizeof(float));
    return std::clamp<int64_t>(kScoreLogitBytes / row_bytes, 1, prefill_chunk_);
  }

  // Bytes of the operations' scratch: on the CPU's threads, or on the GPU.
  uint64_t ScratchBytes(const EngineOptions& options, int64_t rows) const {
    const int threads = parts_.machine.cpu->pool().size();
    const int64_t context = options.max_context > 0
                                ? std::min(options.max_context, config().max_context)
                                : config().max_context;
    const uint64_t cache = cache_plan_->ScratchBytes(options.max_batch, context, threads);
    if (parts_.machine.gpu != nullptr) return ops::cuda::LinearScratchBytes() + cache;
    const int64_t depth = std::max({config().hidden, config().q_width(), config().intermediate});
    return ops::LinearScratchBytes(rows, depth, threads) + cache;
  }

  std::optional<engine::PrefixOptions> Prefixes(const EngineOptions& options) const {
    if (!options.prefix_cache) return std::nullopt;
    engine::PrefixOptions prefixes{options.prefix_store, options.prefix_store_bytes, ""};
    if (prefixes.store.empty()) return prefixes;
    const std::string cache = cache_plan_->Identity();
    if (cache.empty()) {
      throw Unsupported("prefix_store: KV policy '{}' cannot write its rows to a disk here",
                        options.kv.policy);
    }
    prefixes.space = fmt::format("{}; {}; {}{}", parts_.identity(), options.dtype, cache,
                                 parts_.machine.gpu != nullptr ? "; cuda" : "");
    return prefixes;
  }

  MemoryPlan MakePlan(const EngineOptions& options) const {
    const int64_t rows = options.max_batch + prefill_chunk_;
    const int64_t logit_rows = options.max_batch + ScoreRows();
    const auto logit_row_bytes = static_cast<uint64_t>(config().vocab) * sizeof(float);
    engine::MemoryRequest request;
    request.model = parts_.name;
    request.total = parts_.budget + parts_.gpu_budget;
    request.weights = parts_.decoder->weight_bytes();
    request.host_weights = parts_.decoder->host_weight_bytes();
    request.offloaded_layers = parts_.decoder->offloaded_layers();
    request.weights_mapped = parts_.weights_mapped;
    // A sampling thread keeps two rows in host memory: adjusted logits and weights.
    const int64_t of_threads =
        parts_.machine.gpu != nullptr ? 0 : 2 * parts_.machine.cpu->pool().size();
    request.buffers = parts_.decoder->WorkspaceBytes(rows, logit_rows) +
                      static_cast<uint64_t>(logit_rows + of_threads) * logit_row_bytes +
                      ScratchBytes(options, rows) +
                      engine::DeviceSamplerBytes(parts_.machine.compute(), *parts_.stream,
                                                 options.max_batch, config().vocab);
    request.two_memories = parts_.gpu_budget > 0;
    request.device = parts_.gpu_budget > 0 ? parts_.gpu_budget : options.kv.device_memory;
    request.host = options.kv.host_memory;
    // Host memory left by offloaded weights.
    const uint64_t left = parts_.budget - std::min(parts_.budget, request.host_weights);
    if (request.host > 0) request.host = engine::HostCap(request.host, left, options.memory);
    if (parts_.gpu_budget > 0 && request.host == 0) request.host = left;
    request.cache = cache_plan_.get();
    request.policy = options.kv.policy;
    request.model_context = config().max_context;
    request.wanted_context = options.max_context;
    request.max_batch = options.max_batch;
    MemoryPlan plan = engine::MakeMemoryPlan(request);
    plan.prefill_chunk = prefill_chunk_;
    plan.retriever = cache_plan_->retriever();
    plan.transfer = cache_plan_->transfer();
    plan.layers = config().layers;
    plan.kv_heads = config().layers * config().kv_heads;
    if (const kv::HeadPlan* heads = cache_plan_->heads()) {
      plan.resident_heads = heads->resident_count();
    }
    return plan;
  }

  Parts parts_;
  std::shared_ptr<const kv::Profile> profile_;  // null without one
  std::unique_ptr<kv::CachePlan> cache_plan_;
  int64_t prefill_chunk_ = 0;
  MemoryPlan plan_;
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

}  // namespace

std::unique_ptr<Engine> Engine::Load(const std::string& model, const EngineOptions& options) {
  Parts parts = Begin(options, model);
  parts.directory = io::ResolveModelDirectory(model);
  parts.identity = [directory = parts.directory] {
    // The fingerprint only samples the weights; file times reveal changes between the samples.
    return model::Fingerprint(directory) + " " + io::Checkpoint(directory).FileVersions();
  };
  const auto config = model::ModelConfig::FromFile(parts.directory / "config.json");
  CheckWeights(parts, config, options);
  // Small files come first: their errors appear at once, not after gigabytes have been read.
  if (std::filesystem::exists(parts.directory / "tokenizer.json")) {
    parts.tokenizer = tokenizer::Tokenizer::FromDirectory(parts.directory);
  }
  const auto generation = io::GenerationConfig::FromDirectory(parts.directory);
  parts.sampling = DefaultSampling(generation);
  parts.sampling.Validate();
  parts.eos_ids = MergeEosIds(generation, config, parts.tokenizer.get());

  model::LoadOptions load;
  load.compute_f32 = options.dtype == "f32";
  load.weights_on_device = options.weights_on_device;
  std::unique_ptr<ProgressBar> bar;
  if (options.show_progress) {
    load.progress = [&bar](int64_t done, int64_t total) {
      if (bar == nullptr) bar = std::make_unique<ProgressBar>("Loading", total, "B");
      bar->Update(done);
    };
  }
  parts.decoder = model::LoadDecoder(parts.machine.compute(), parts.directory, load);
  bar.reset();
  parts.weights_mapped =
      parts.machine.gpu == nullptr && (!load.compute_f32 || config.weight_dtype == DType::kF32);
  return std::make_unique<EngineImpl>(std::move(parts), options);
}

std::unique_ptr<Engine> Engine::Random(const std::string& shape, uint64_t seed,
                                       const EngineOptions& options) {
  Parts parts = Begin(options, shape);
  parts.identity = [shape, seed] { return fmt::format("random {} {}", shape, seed); };
  const auto config = model::ModelConfig::FromShapeName(shape);
  CheckWeights(parts, config, options);
  model::LoadOptions load;
  load.compute_f32 = options.dtype == "f32";
  load.weights_on_device = options.weights_on_device;
  parts.decoder = model::RandomDecoder(parts.machine.compute(), config, seed, load);
  parts.eos_ids = config.eos_ids;
  return std::make_unique<EngineImpl>(std::move(parts), options);
}

}  // namespace litecache
