// LiteCache's engine: load a model, submit requests, receive tokens as they come, cancel at any
// time.
//
//   auto engine = litecache::Engine::Load("path/to/model", {});
//   auto handle = engine->Submit({.prompt = engine->tokenizer().Encode("Once")});
//   while (auto chunk = handle->Next()) std::cout << chunk->text;
//
// Thread-safe: any thread may submit, read and cancel; one engine thread runs the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "litecache/kv_options.h"
#include "litecache/kv_stats.h"
#include "litecache/named_bytes.h"

namespace litecache {

class TokenConstraint;
namespace tokenizer {
class Tokenizer;
}
namespace model {
struct ModelConfig;
}

struct EngineOptions {
  std::string dtype = "auto";  // "auto" (the checkpoint's) or "f32"
  // What runs the model: "cpu", "cuda" (the first GPU), "cuda:N", or "auto": a GPU where there is
  // one, else the CPU.
  std::string device = "auto";
  int threads = 0;  // CPU threads; 0: one a core
  uint64_t memory =
      0;  // budget in bytes for weights, KV and buffers together; 0: 90% of what is available. With
          // a GPU: of host memory alone, the GPU's is kv.device_memory
  int64_t max_context =
      0;  // tokens a request may reach; 0: the model's own limit, or what memory allows
  // Share of the layers whose weights stay in a GPU's memory, in [0, 1]. Those of the others are in
  // pinned host memory and travel in every step, beside what it computes. On the CPU: 1.
  double weights_on_device = 1;
  int64_t max_batch = 64;  // sequences decoded together
  // Prompt tokens a step processes; 0: 512 on a CPU, on a GPU what its memory is good for.
  int64_t prefill_chunk = 0;
  // The same where others decode in that step, which wait for it: fewer make their tokens come more
  // evenly. 0: prefill_chunk; -1: 128 on a CPU, on a GPU a quarter of prefill_chunk.
  int64_t prefill_chunk_beside_decode = 0;
  KvOptions kv;
  // Keep the KV of requests that have ended for later ones with the same beginning, as long as
  // nobody needs the memory.
  bool prefix_cache = false;
  // With prefix_cache: keep it in this directory as well, beyond the end of the process, at most
  // prefix_store_bytes of files. One process a directory. Empty: not.
  std::filesystem::path prefix_store;
  uint64_t prefix_store_bytes = uint64_t{20} << 30;
  bool show_progress = true;  // bars on a terminal while loading

  // Throws InvalidArgument naming the option, its value and what it may be.
  void Validate(OptionNames names = OptionNames::kMembers) const;
};

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  int top_k = 0;             // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<uint64_t> seed;  // unset: drawn from the system, reported in the result
  std::vector<std::pair<int32_t, float>> logit_bias;

  // Throws InvalidArgument naming the field, its value and the valid range.
  void Validate() const;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids
  SamplingParams sampling;
  int64_t max_tokens = 0;         // 0: up to the context's end
  int n = 1;                      // samples of one prompt; the prompt is prefilled once
  std::vector<std::string> stop;  // strings; found across token boundaries, not part of the text
  std::vector<int32_t> stop_token_ids;  // beside the model's end-of-sequence ids
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // in the text
  int logprobs = -1;  // -1: none; k >= 0: the chosen token's and the k most likely ones
  // Whose request it is, any number: where requests wait, clients take turns.
  uint64_t client = 0;
  // What every sample may consist of; each follows a clone of its own. Null: anything.
  std::shared_ptr<const TokenConstraint> constraint;
  // Called from the engine's thread while the prompt is processed.
  std::function<void(int64_t done, int64_t total)> on_prefill;
  // Called from the engine's thread whenever chunks have been queued, for readers that do not wait
  // in Next(): NextFor(0, ...) then has something. Must be quick and must not throw.
  std::function<void()> on_chunks;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// One generated token of one sample.
struct Chunk {
  int sample = 0;               // 0 .. n-1
  std::vector<int32_t> tokens;  // new ids (empty on a last chunk that only flushes text)
  std::string text;  // text that became certain: whole UTF-8 characters, nothing that may start a
                     // stop string
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string error;  // for kError
};

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt: their KV was there already
  int64_t generated_tokens = 0;  // over all samples
  double queue_seconds = 0;
  double prefill_seconds = 0;  // from start of the first chunk to the first token
  double decode_seconds = 0;   // from the first token to the last
  uint64_t seed = 0;
};

// A submitted request. Dropping the last handle cancels it.
class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
  // Blocks for the next chunk of any sample; nullopt when all samples have finished.
  virtual std::optional<Chunk> Next() = 0;
  // The same with a time limit; `timed_out` tells which of the two nullopt means.
  virtual std::optional<Chunk> NextFor(double seconds, bool* timed_out) = 0;
  // Ends the request at the next step boundary; its memory is freed. Idempotent.
  virtual void Cancel() = 0;
  virtual RequestStats Stats() const = 0;
};

// Where the memory goes; made once at start.
struct MemoryPlan {
  uint64_t total = 0;  // budget, of both memories together where there are two
  // With a GPU: the budget of its memory (weights, buffers, the device's part of KV), and of the
  // host's (the host store). One memory: both 0.
  uint64_t device_total = 0;
  uint64_t host_total = 0;
  uint64_t weights = 0;
  // Of offloaded_layers layers: in host memory, beside the places on the GPU (in `weights`) to
  // which they come in every step (EngineOptions.weights_on_device).
  uint64_t host_weights = 0;
  int64_t offloaded_layers = 0;
  // The weights stay in their files, mapped into memory: they live in the system's page cache,
  // which may drop and read them again under pressure, and other processes share them.
  bool weights_mapped = false;
  uint64_t buffers = 0;       // activations and logits at the largest step
  int64_t prefill_chunk = 0;  // prompt tokens of the largest step
  kv::TierBytes kv;           // budgets of the KV cache
  // KV of one token over all layers and heads, were all of it kept.
  uint64_t kv_per_token = 0;
  // What a sequence of largest_context tokens takes.
  kv::TierBytes kv_largest;
  // Its part on the device, by what it is for; empty for policies that do not say.
  std::vector<NamedBytes> kv_parts;
  std::string kv_policy;
  std::string kv_device_holds;  // what the device's part of KV is for, in words
  std::string retriever;        // empty for policy full
  std::string transfer;         // engine; empty where rows do not travel to a GPU
  int64_t layers = 0;
  int64_t kv_heads = 0;         // over all layers
  int64_t resident_heads = 0;   // of them, with policy litecache
  int64_t largest_context = 0;  // tokens one request can reach
  int64_t context_limit = 0;    // tokens the model or EngineOptions.max_context allow
  // Several lines: where each GiB goes.
  std::string ToString() const;
};

// What requests had in common; all zero without EngineOptions.prefix_cache.
struct PrefixStats {
  int64_t requests = 0;       // that have begun
  int64_t hits = 0;           // of them, that found a part of their prompt
  int64_t tokens = 0;         // prompt tokens found
  int64_t tokens_loaded = 0;  // of them, read from the store
  int64_t sequences = 0;      // kept now
  kv::TierBytes bytes;        // of the pages they hold, which running requests may share
  int64_t evictions = 0;      // sequences given up because a request needed the memory
  // EngineOptions.prefix_store
  bool store = false;
  bool store_writing = false;  // false after a write has failed
  int64_t store_blocks = 0;
  uint64_t store_bytes = 0;
  uint64_t store_capacity = 0;
  uint64_t store_bytes_read = 0;
  uint64_t store_bytes_written = 0;
  int64_t store_evictions = 0;
  int64_t store_damaged = 0;  // blocks that could not be used and were removed
};

struct EngineStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  kv::Stats kv;
  std::vector<kv::HeadCounters> kv_heads;  // [layers][kv_heads]; empty for policy full
  PrefixStats prefix;
};

// Teacher forcing: what the model thinks of given tokens.
struct ScoreRequest {
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;  // whose logits are wanted
  // Tokens from this index on are fed one at a time, as decode steps, so that the KV policy acts as
  // it would while generating them; -1: all in chunks, as a prompt.
  int64_t decode_from = -1;
};

// Logits and mean negative log-likelihood of given tokens (teacher forcing).
struct ScoreResult {
  std::vector<std::vector<float>> logits;  // [positions.size()][vocab]
  std::vector<float> token_nll;            // [tokens - 1]: nll of token i+1 given the ones before
  double mean_nll = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // A directory in Hugging Face's layout, or org/name from the local Hugging Face cache.
  // Throws FileError, Unsupported, InvalidArgument, CapacityError.
  static std::unique_ptr<Engine> Load(const std::string& model, const EngineOptions& options);
  // Random weights of a published shape; has no tokenizer.
  static std::unique_ptr<Engine> Random(const std::string& shape, uint64_t seed,
                                        const EngineOptions& options);

  virtual const model::ModelConfig& config() const = 0;
  // Throws Error for an engine without one.
  virtual const tokenizer::Tokenizer& tokenizer() const = 0;
  virtual const std::filesystem::path& directory() const = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  // What the KV policy decided at start: one line a fact (heads, thresholds, retriever, profile);
  // empty for policy full.
  virtual const std::vector<std::string>& kv_notes() const = 0;
  virtual EngineStats Stats() const = 0;
  // The checkpoint's generation_config.json defaults (temperature, top_p, ...), where it has them.
  virtual const SamplingParams& default_sampling() const = 0;

  // Checks the request before any work starts: throws InvalidArgument (empty prompt, ids out of
  // range, parameters) and CapacityError (does not fit the context or the memory, with the
  // numbers).
  virtual std::shared_ptr<RequestHandle> Submit(Request request) = 0;

  // Logits at the request's positions and every token's nll. Blocks; calls from several threads run
  // as one batch.
  virtual ScoreResult Score(
      const ScoreRequest& request,
      const std::function<void(int64_t done, int64_t total)>& progress = {}) = 0;

  // A short label: "llama, 16.4M parameters, bf16".
  virtual std::string Description() const = 0;
};

}  // namespace litecache
