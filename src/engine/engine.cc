// Engine: a model, its memory plan, and the core that runs it.

#include "litecache/engine.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/thread_pool.h"
#include "engine/core.h"
#include "engine/deterministic.h"
#include "engine/draft/drafters.h"
#include "engine/engine_plan.h"
#include "engine/kv_profile.h"
#include "engine/load.h"
#include "engine/prefill_chunk.h"
#include "engine/ranks/counters.h"
#include "engine/ranks/leader.h"
#include "engine/ranks/ranks.h"
#include "engine/replicas/replicas.h"
#include "kv/cache_plan.h"
#include "model/decoder.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache {
namespace {

using engine::Parts;

class TokenizerText final : public engine::TokenText {
 public:
  TokenizerText(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const Request& request)
      : stream_(std::move(tokenizer), request.skip_special_tokens, request.kept_special_tokens) {}
  std::string Add(int32_t token) override { return stream_.Add(token); }
  std::string Flush() override { return stream_.Flush(); }

 private:
  tokenizer::StreamDecoder stream_;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(Parts parts, const EngineOptions& options)
      : parts_(std::move(parts)),
        plan_(engine::PlanTogether(parts_, options)),
        kv_notes_(engine::DescribePlan(*plan_.cache, plan_.kv, plan_.profile.get())),
        cache_(plan_.cache->Create(parts_.machine.compute(), plan_.memory.kv)),
        draft_cache_(
            plan_.draft_cache == nullptr
                ? nullptr
                : plan_.draft_cache->Create(parts_.machine.compute(), plan_.memory.draft.kv)) {
    if (parts_.group != nullptr) LeadRanks();
    for (const std::string& note : kv_notes_) LogInfo("KV cache: {}", note);
    if (const auto warning = engine::PlanWarning(*plan_.cache, plan_.profile.get());
        !warning.empty()) {
      LogWarning("KV cache: {}", warning);
    }
    engine::Backend backend;
    backend.device = &parts_.machine.compute();
    backend.stream = parts_.stream.get();
    backend.decoder = leading_decoder_ != nullptr ? leading_decoder_.get() : parts_.decoder.get();
    backend.cache = leading_cache_ != nullptr ? leading_cache_.get() : cache_.get();
    backend.pool = &parts_.machine.cpu->pool();
    backend.eos_ids = parts_.eos_ids;
    if (parts_.tokenizer != nullptr) {
      backend.token_text = [this](const Request& request) {
        return std::make_unique<TokenizerText>(parts_.tokenizer, request);
      };
    }
    backend.draft_decoder = parts_.draft_decoder.get();
    backend.draft_cache = draft_cache_.get();
    const engine::Drafters drafters = engine::ParseDrafters(Drafts(options, *backend.cache));
    core_ = std::make_unique<engine::Core>(
        backend, engine::CoreOptions{
                     plan_.memory.context_limit, plan_.memory.max_batch, plan_.memory.prefill_chunk,
                     engine::PrefillChunkBesideDecode(options.prefill_chunk_beside_decode,
                                                      parts_.machine.compute().type(),
                                                      plan_.memory.prefill_chunk),
                     plan_.score_rows, Prefixes(options), /*sample_on_device=*/true,
                     options.deterministic
                         ? engine::DeterministicRows(*parts_.decoder, parts_.device(), plan_.kv)
                         : 0,
                     drafters.any() ? options.draft_tokens : 0, drafters.lookup, drafters.sparse,
                     DraftsAlways()});
  }

  ~EngineImpl() override {
    // A kernel may wait for a rank that has ended, so nothing that the GPU uses can be freed, and
    // this process has no other use. The error has been logged.
    if (parts_.group != nullptr && parts_.group->ended() && parts_.machine.gpu != nullptr) _exit(1);
  }

  const model::ModelConfig& config() const override {
    const model::ModelConfig& part = parts_.decoder->config();
    return part.shard.whole != nullptr ? *part.shard.whole : part;
  }
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
  EngineStats Stats() const override {
    EngineStats stats = core_->Stats();
    for (int rank = 0; parts_.group != nullptr && rank < parts_.group->ranks(); ++rank) {
      stats.parts.push_back(
          {fmt::format("rank {}", rank), 0, 0, engine::PublishedStats(*parts_.group, rank)});
    }
    return stats;
  }
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
  void LeadRanks() {
    const model::ModelConfig& part = parts_.decoder->config();
    kv_notes_.push_back(fmt::format(
        "tensor parallelism: each of {} ranks has {} of {} query heads and {} of {} KV "
        "heads; memory is of one",
        part.shard.ranks, part.q_heads, config().q_heads, part.kv_heads, config().kv_heads));
    plan_.memory.kv_heads = plan_.memory.layers * config().kv_heads;
    plan_.memory.resident_heads *= part.shard.ranks;
    leading_cache_ = std::make_unique<engine::LeadingCache>(*cache_, part, *parts_.group);
    leading_decoder_ = std::make_unique<engine::LeadingDecoder>(*parts_.decoder, *leading_cache_);
  }
  // LITECACHE_DRAFT_ALWAYS=1 drafts whether or not it pays, to measure how many drafts are
  // accepted.
  static bool DraftsAlways() {
    const char* asked = std::getenv("LITECACHE_DRAFT_ALWAYS");
    return asked != nullptr && std::string_view(asked) == "1";
  }
  // EngineOptions::draft with `exact` resolved.
  std::string Drafts(const EngineOptions& options, const kv::Cache& cache) const {
    std::string drafts = options.draft;
    if (options.exact && drafts == "off" && plan_.kv.policy != "full" &&
        plan_.kv.policy != "kvpr") {
      if (!cache.SelectsRows()) {
        throw Unsupported(
            "exact: nothing verifies what KV policy '{}' leaves out; use full, kvpr or litecache",
            plan_.kv.policy);
      }
      drafts = "lookup,sparse";
    }
    return drafts;
  }
  std::optional<engine::PrefixOptions> Prefixes(const EngineOptions& options) const {
    if (!options.prefix_cache) return std::nullopt;
    engine::PrefixOptions prefixes{options.prefix_store, options.prefix_store_bytes, ""};
    if (options.deterministic) prefixes.chunk = plan_.memory.prefill_chunk;
    if (prefixes.store.empty()) return prefixes;
    std::string cache = plan_.cache->Identity();
    if (cache.empty()) {
      throw Unsupported("prefix_store: KV policy '{}' cannot write its rows to a disk here",
                        plan_.kv.policy);
    }
    if (leading_cache_ != nullptr && leading_cache_->CutsPrefixes()) {
      cache += "; " + leading_cache_->DescribeBlocks();
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
  std::unique_ptr<kv::Cache> cache_, draft_cache_;  // the second of a draft model; else null
  // With tensor parallelism; null without.
  std::unique_ptr<engine::LeadingCache> leading_cache_;
  std::unique_ptr<engine::LeadingDecoder> leading_decoder_;
  std::unique_ptr<engine::Core> core_;  // declared last: its thread ends before the other members
};

std::unique_ptr<Engine> LoadEngine(const engine::ModelSource& source,
                                   const EngineOptions& options) {
  options.Validate();
  if (options.data_parallel > 1) {
    return engine::LoadReplicas(options,
                                [&](const EngineOptions& own) { return LoadEngine(source, own); });
  }
  if (options.tensor_parallel == 1) {
    return std::make_unique<EngineImpl>(engine::LoadParts(source, options, nullptr), options);
  }
  const auto group = engine::JoinRanks(options.tensor_parallel);
  engine::TellLoad(*group, source, options);
  const EngineOptions own = engine::OptionsOfRank(options, *group);
  return std::make_unique<EngineImpl>(engine::LoadParts(source, own, group), own);
}

}  // namespace

std::unique_ptr<Engine> Engine::Load(const std::string& model, const EngineOptions& options) {
  return LoadEngine({model, std::nullopt}, options);
}

std::unique_ptr<Engine> Engine::Random(const std::string& shape, uint64_t seed,
                                       const EngineOptions& options) {
  return LoadEngine({shape, seed}, options);
}

}  // namespace litecache
