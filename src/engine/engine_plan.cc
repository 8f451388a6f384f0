#include "engine/engine_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/units.h"
#include "engine/device_sampler.h"
#include "engine/gpu_speed.h"
#include "engine/kv_profile.h"
#include "engine/memory_plan.h"
#include "engine/prediction_probe.h"
#include "engine/prefill_chunk.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/prediction_sources.h"
#include "kv/offload/recompute.h"
#include "kv/tiers.h"
#include "model/weight_placement.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_scratch_cuda.h"

namespace litecache::engine {
namespace {

// Bytes of the logits of a score job's step. Larger steps run faster; 32 MiB are 64 rows of Llama
// 3's vocabulary, enough for a matrix product to be compute-bound.
constexpr int64_t kScoreLogitBytes = 32 << 20;

const model::ModelConfig& ConfigOf(const Parts& parts) { return parts.decoder->config(); }

// 0: no drafts.
int64_t DraftTokens(const EngineOptions& options) {
  return options.draft != "off" || options.exact ? options.draft_tokens : 0;
}

int64_t PrefillChunk(const Parts& parts, const EngineOptions& options) {
  if (options.prefill_chunk > 0) return options.prefill_chunk;
  const uint64_t weights = parts.decoder->weight_bytes();
  const uint64_t budget = parts.weights_budget();
  return DefaultPrefillChunk(*parts.decoder, parts.device(),
                             budget > weights ? budget - weights : 0);
}

// Bytes of the operations' scratch: on the CPU's threads, or on the GPU.
uint64_t ScratchBytes(const Parts& parts, const kv::CachePlan& cache_plan,
                      const EngineOptions& options, int64_t rows) {
  const model::ModelConfig& config = ConfigOf(parts);
  const int threads = parts.machine.cpu->pool().size();
  const int64_t context = options.max_context > 0
                              ? std::min(options.max_context, config.max_context)
                              : config.max_context;
  const uint64_t cache = cache_plan.ScratchBytes(options.max_batch, context, threads);
  if (parts.device() == DeviceType::kCuda) {
    uint64_t bytes = ops::cuda::LinearScratchBytes() + cache;
    if (config.quantized) {
      // kvpr multiplies on streams of its own as well.
      const size_t streams = options.kv.policy == "kvpr" ? 1 + kv::offload::kRecomputeLanes : 1;
      bytes += streams * ops::cuda::UnpackedSliceBytes();
    }
    return bytes;
  }
  const int64_t depth =
      std::max({config.hidden, config.q_width(), config.q_heads * config.window_head_dim,
                config.delta.width(), config.intermediate, config.shared_intermediate,
                config.experts.intermediate, config.experts.shared});
  return ops::LinearScratchBytes(rows, depth, threads) + cache;
}

// A draft model computes as many rows as the model, and logits of one row of each sequence.
void AddDraftModel(const Parts& parts, const kv::CachePlan& cache, int64_t rows,
                   const EngineOptions& options, MemoryRequest* request) {
  const model::Decoder& decoder = *parts.draft_decoder;
  const model::ModelConfig& config = decoder.config();
  request->draft_cache = &cache;
  request->draft_context = config.max_context;
  request->draft_weights = decoder.weight_bytes();
  request->draft_buffers =
      decoder.WorkspaceBytes(rows, options.max_batch) +
      static_cast<uint64_t>(options.max_batch * config.vocab) * sizeof(float) +
      cache.ScratchBytes(options.max_batch, config.max_context, parts.machine.cpu->pool().size());
}

// Of plan.kv, for up to `options.max_batch` sequences.
void PlanCaches(const Parts& parts, const EngineOptions& options, Plan* plan) {
  plan->cache = kv::MakeCachePlan(ConfigOf(parts).kv_layout(parts.decoder->kv_dtype()), plan->kv,
                                  plan->profile, parts.device());
  if (DraftTokens(options) > 0) plan->cache->PlanDrafts(options.draft_tokens);
  if (parts.draft_decoder == nullptr) return;
  const model::Decoder& draft = *parts.draft_decoder;
  KvOptions full;
  full.policy = "full";
  plan->draft_cache =
      kv::MakeCachePlan(draft.config().kv_layout(draft.kv_dtype()), full, nullptr, parts.device());
  plan->draft_cache->PlanDrafts(options.draft_tokens);
}

MemoryPlan PlanMemory(const Parts& parts, const Plan& caches, const EngineOptions& options) {
  kv::CachePlan* const cache = caches.cache.get();
  const int64_t score_rows = caches.score_rows;
  const model::ModelConfig& config = ConfigOf(parts);
  const int64_t prefill_chunk = PrefillChunk(parts, options);
  const int64_t rows = options.max_batch + prefill_chunk;
  const int64_t logit_rows = options.max_batch + score_rows;
  const auto logit_row_bytes = static_cast<uint64_t>(config.vocab) * sizeof(float);
  MemoryRequest request;
  request.model = parts.name;
  request.total = parts.budget + parts.gpu_budget;
  request.weights = parts.decoder->weight_bytes();
  request.host_weights = parts.decoder->host_weight_bytes();
  request.offloaded_layers = parts.decoder->offloaded_layers();
  request.weights_mapped = parts.weights_mapped;
  // A sampling thread keeps two rows in host memory: adjusted logits and weights.
  const int64_t of_threads =
      parts.device() == DeviceType::kCuda ? 0 : 2 * parts.machine.cpu->pool().size();
  request.buffers =
      parts.decoder->WorkspaceBytes(rows, logit_rows) +
      static_cast<uint64_t>(logit_rows + of_threads) * logit_row_bytes +
      ScratchBytes(parts, *cache, options, rows) +
      DeviceSamplerBytes(parts.machine.compute(), *parts.stream,
                         SampledRows(options.max_batch, score_rows, DraftTokens(options)),
                         config.vocab);
  if (parts.draft_decoder != nullptr) {
    AddDraftModel(parts, *caches.draft_cache, rows, options, &request);
  }
  request.two_memories = parts.gpu_budget > 0;
  request.device = parts.gpu_budget > 0 ? parts.gpu_budget : options.kv.device_memory;
  request.host = options.kv.host_memory;
  // Host memory left by offloaded weights.
  const uint64_t left = parts.budget - std::min(parts.budget, request.host_weights);
  if (request.host > 0) request.host = HostCap(request.host, left, options.memory);
  if (parts.gpu_budget > 0 && request.host == 0) request.host = left;
  request.cache = cache;
  request.policy = options.kv.policy;
  request.model_context = config.max_context;
  request.wanted_context = options.max_context;
  request.max_batch = options.max_batch;
  MemoryPlan plan = MakeMemoryPlan(request);  // may offload resident heads
  plan.prefill_chunk = prefill_chunk;
  plan.retriever = cache->retriever();
  plan.transfer = cache->transfer();
  plan.layers = cache->layout().whole_layers();
  plan.kv_heads = plan.layers * config.kv_heads;
  if (const kv::HeadPlan* heads = cache->heads()) plan.resident_heads = heads->resident_count();
  return plan;
}

// For up to `batch` sequences. Sets cache and memory of `plan`.
void PlanFor(const Parts& parts, EngineOptions options, int64_t batch, Plan* plan) {
  options.max_batch = batch;
  PlanCaches(parts, options, plan);
  plan->memory = PlanMemory(parts, *plan, options);
}

// For the most sequences, a power of two up to EngineOptions::kDefaultBatch, that cost neither a
// resident head, nor the whole context where a single one can have it, nor an eighth of a shorter
// one. With policy litecache a selection's scratch for 64 sequences of 131,072 tokens takes 2.4 GiB
// of a GPU (Llama 3.1 8B).
void PlanForMost(const Parts& parts, const EngineOptions& options, Plan* plan) {
  PlanFor(parts, options, 1, plan);
  const MemoryPlan single = plan->memory;
  const bool whole = single.largest_context == single.context_limit;
  const int64_t enough = whole ? single.context_limit : single.largest_context * 7 / 8;
  for (int64_t batch = EngineOptions::kDefaultBatch; batch > 1; batch /= 2) {
    try {
      PlanFor(parts, options, batch, plan);
    } catch (const CapacityError&) {
      continue;
    }
    if (plan->memory.resident_heads == single.resident_heads &&
        plan->memory.largest_context >= enough) {
      return;
    }
  }
  PlanFor(parts, options, 1, plan);
}

// Norms over the heads of all ranks are sums over the ranks, which all must make at the same time:
// keys are not computed again, and queries are not predicted, which each rank decides by itself.
KvOptions PossibleTogether(const Parts& parts, KvOptions options) {
  if (parts.ranks == nullptr || !ConfigOf(parts).wide_qk_norm) return options;
  if (options.policy == "kvpr") {
    throw Unsupported(
        "KV policy kvpr: {} has norms over all heads, so that its keys cannot be "
        "computed again with tensor_parallel; use another policy",
        parts.name);
  }
  options.prefetch = "off";
  return options;
}

// options.kv.policy is the name of a policy, and resident_heads is decided.
Plan PlanResolved(const Parts& parts, const EngineOptions& options) {
  CheckLayersAhead(options, ConfigOf(parts));
  const int64_t logit_row_bytes = ConfigOf(parts).vocab * static_cast<int64_t>(sizeof(float));
  Plan plan;
  plan.kv = WithMeasuredSources(PossibleTogether(parts, options.kv), parts.machine.compute(),
                                *parts.stream, *parts.decoder);
  plan.profile = WithMeasuredSpeed(LoadProfile(plan.kv, parts.directory, ConfigOf(parts)), plan.kv,
                                   parts.machine.compute(), *parts.stream, *parts.decoder);
  plan.score_rows =
      std::clamp<int64_t>(kScoreLogitBytes / logit_row_bytes, 1, PrefillChunk(parts, options));
  if (options.max_batch > 0) {
    PlanFor(parts, options, options.max_batch, &plan);
  } else {
    PlanForMost(parts, options, &plan);
  }
  return plan;
}

// With all rows on the device, where the whole contexts of all sequences have room there.
std::optional<Plan> PlanOnDevice(const Parts& parts, const EngineOptions& options) {
  EngineOptions kept = options;
  kept.kv = kv::KeptOnDevice(options.kv);
  // Drafts that attend every row would take as long as what verifies them.
  if (DraftTokens(options) > 0) kept.kv.resident_whole = options.kv.resident_whole;
  try {
    Plan plan = PlanResolved(parts, kept);
    const MemoryPlan& memory = plan.memory;
    const kv::TierBytes all =
        static_cast<uint64_t>(memory.max_batch) * plan.cache->BytesFor(memory.context_limit);
    if (memory.resident_heads == memory.kv_heads && all.FitsIn(memory.kv)) return plan;
  } catch (const CapacityError&) {
  }
  return std::nullopt;
}

// options.kv.policy is the name of a policy.
Plan PlanPolicy(const Parts& parts, const EngineOptions& options) {
  if (!kv::ResidentByRoom(options.kv) || parts.device() != DeviceType::kCuda) {
    return PlanResolved(parts, options);
  }
  auto plan = PlanOnDevice(parts, options);
  return plan ? std::move(*plan) : PlanResolved(parts, options);
}

// The same, or nothing where it does not fit.
std::optional<Plan> TryPolicy(const Parts& parts, EngineOptions options, const char* policy) {
  options.kv.policy = policy;
  try {
    return PlanPolicy(parts, options);
  } catch (const CapacityError&) {
    return std::nullopt;
  }
}

// "1.1 GiB of GPU memory and 16.0 GiB of host memory for 131072 tokens".
std::string NeedOf(const Plan& plan) {
  const kv::TierBytes& bytes = plan.memory.kv_largest;
  return fmt::format("{} for {} tokens",
                     plan.memory.device_total > 0
                         ? fmt::format("{} of GPU memory and {} of host memory",
                                       FormatBytes(bytes.device), FormatBytes(bytes.host))
                         : kv::FormatTiers(bytes),
                     plan.memory.largest_context);
}

// "use --kv-policy litecache, whose KV fits with ..."; empty where it has no room for more than
// `tokens` tokens, or cannot run here.
std::string Alternative(const Parts& parts, const EngineOptions& options, int64_t tokens) {
  try {
    const auto plan = TryPolicy(parts, options, "litecache");
    if (!plan || plan->memory.largest_context <= tokens) return "";
    return "use --kv-policy litecache, whose KV fits with " + NeedOf(*plan);
  } catch (const Error&) {
    return "";
  }
}

Plan ChoosePolicy(const Parts& parts, const EngineOptions& options) {
  auto full = TryPolicy(parts, options, "full");
  if (full && full->memory.largest_context == full->memory.context_limit) return std::move(*full);
  auto offloaded = TryPolicy(parts, options, "litecache");
  const int64_t fits = full ? full->memory.largest_context : 0;
  if (offloaded && offloaded->memory.largest_context > fits) {
    LogWarning(
        "--kv-policy auto: litecache, because full has room for {} of {} tokens; it takes {}, and "
        "each head attends {} of the context and its newest tokens, so that answers can differ "
        "from full's",
        fits, offloaded->memory.context_limit, NeedOf(*offloaded),
        options.kv.budget.tokens > 0 ? options.kv.budget.ToString() + " rows"
                                     : options.kv.budget.ToString());
    return std::move(*offloaded);
  }
  if (full) return std::move(*full);
  EngineOptions as_full = options;
  as_full.kv.policy = "full";
  return PlanPolicy(parts, as_full);  // throws, with the numbers
}

}  // namespace

Plan MakePlan(const Parts& parts, const EngineOptions& options) {
  if (options.kv.policy == "auto") return ChoosePolicy(parts, options);
  if (options.kv.policy != "full") return PlanPolicy(parts, options);
  try {
    Plan plan = PlanPolicy(parts, options);
    const int64_t fits = plan.memory.largest_context;
    if (fits < plan.memory.context_limit) plan.alternative = Alternative(parts, options, fits);
    return plan;
  } catch (const CapacityError& error) {
    const std::string alternative = Alternative(parts, options, 0);
    if (alternative.empty()) throw;
    throw CapacityError("{}; or {}", error.what(), alternative);
  }
}

Plan PlanTogether(const Parts& parts, const EngineOptions& options) {
  Plan plan = MakePlan(parts, options);
  if (parts.group == nullptr) return plan;
  MemoryPlan& memory = plan.memory;
  int64_t* const sizes[] = {&memory.context_limit, &memory.max_batch, &memory.prefill_chunk,
                            &plan.score_rows};
  std::vector<uint64_t> least = {memory.kv.device, memory.kv.host};
  for (const int64_t* size : sizes) least.push_back(static_cast<uint64_t>(*size));
  parts.group->Minimum(least);
  memory.kv = {.device = least[0], .host = least[1]};
  for (size_t i = 0; i < std::size(sizes); ++i) *sizes[i] = static_cast<int64_t>(least[2 + i]);
  return plan;
}

model::LoadOptions WeightOptions(const EngineOptions& options) {
  std::optional<DType> dtype;
  if (options.dtype == "f32") dtype = DType::kF32;
  if (options.dtype == "bf16") dtype = DType::kBF16;
  return {.dtype = dtype,
          .quantization = model::Quantization::Parse(options.quantize),
          .weights_on_device = options.weights_on_device,
          .experts_on_device = options.experts_on_device,
          .max_context = options.max_context,
          .progress = {}};
}

void CheckLayersAhead(const EngineOptions& options, const model::ModelConfig& config) {
  if (options.kv.policy != "litecache") return;
  model::CheckLayersAhead(
      model::WeightPlacement::Of(config.layers, options.weights_on_device),
      kv::LayersAhead(kv::PredictionSources(options.kv, config.layers, DeviceType::kCuda)));
}

}  // namespace litecache::engine
