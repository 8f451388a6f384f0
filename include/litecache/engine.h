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
  std::string dtype = "auto";  // "auto" (the checkpoint's), "bf16" or "f32"
  // Matrices are rounded to quantized blocks while they are loaded: "q8_0", "q6_k", "q5_k", "q4_k",
  // ..., and exceptions by module: "q4_k,lm_head=q8_0,v_proj=none". Without an exception lm_head
  // and embed_tokens get at least 6 bits. They stay quantized in memory, activations are bf16; with
  // dtype f32 only the values are rounded. Empty: as in the files (GGUF's blocks stay as they are).
  std::string quantize;
  // The device that runs the model: "cpu", "cuda" (the first GPU), "cuda:N", or "auto": a GPU if
  // there is one, otherwise the CPU.
  std::string device = "auto";
  int threads = 0;  // CPU threads; 0: one per core
  // Tensor parallelism: the model is divided among that many processes, which this one starts, each
  // with a GPU of its own (device "cuda": the first ones; "cuda:N": from N on) or a share of the
  // cores. Heads, feed-forward blocks and the vocabulary are divided, and so is the KV cache.
  // kv.device_memory is of each GPU, `memory` and kv.host_memory are of all ranks together,
  // `threads` of each.
  int tensor_parallel = 1;
  // Data parallelism: that many engines with the whole model, each with a GPU of its own (device
  // "cuda": the first ones; "cuda:N": from N on) or a share of the cores. A request runs on the one
  // that has kept the beginning of its prompt, or has the fewest requests. kv.device_memory is of
  // each GPU, `memory`, kv.host_memory and prefix_store_bytes are of all together, `threads` and
  // max_batch of each. Excludes tensor_parallel.
  int data_parallel = 1;
  // Budget in bytes for weights, KV and buffers together; 0: 90% of the available memory. With a
  // GPU: of host memory only; the GPU's budget is kv.device_memory.
  uint64_t memory = 0;
  // Tokens that a request may reach; 0: the model's limit, or what fits in memory.
  int64_t max_context = 0;
  // Share of the layers whose weights stay in GPU memory, in [0, 1]. The other layers' weights are
  // in pinned host memory and are transferred in every step while the GPU computes. On the CPU: 1.
  double weights_on_device = 1;
  // Of a mixture of experts: the share of each layer's experts of which GPU memory has copies, in
  // [0, 1]. Below 1 all experts are in pinned host memory, and the copies are of those that were
  // used last. On the CPU: 1.
  double experts_on_device = 1;
  // Most sequences decoded together; 0: kDefaultBatch, or fewer where their buffers would take the
  // memory of longer contexts (MemoryPlan::max_batch).
  int64_t max_batch = 0;
  static constexpr int64_t kDefaultBatch = 64;
  // Prompt tokens processed in one step; 0: 512 on a CPU, on a GPU chosen by its memory.
  int64_t prefill_chunk = 0;
  // The same for steps in which other sequences decode: a smaller number makes their tokens come
  // more evenly. 0: prefill_chunk; -1: 128 on a CPU, on a GPU a quarter of prefill_chunk.
  int64_t prefill_chunk_beside_decode = 0;
  // An answer does not depend on the requests that run beside it, nor on kept prefixes, in bf16 as
  // well: steps process prompt chunks one by one, cut at multiples of prefill_chunk, apart from
  // decode rows, whose number is limited to what the kernels for few rows serve at once. Takes
  // longer for many requests. Policies full and litecache; on a GPU models in bf16.
  bool deterministic = false;
  // Drafts: tokens that are computed in the same step as the last one and accepted as far as the
  // model chooses them itself. "lookup": those that followed the longest earlier occurrence of the
  // last ones, in prompt and answer. "sparse": those that decode steps of policy litecache give.
  // Anything else names a draft model, as Engine::Load does: a smaller model with the same tokens,
  // whose KV cache is of policy full. "lookup,sparse", "lookup,DIR": either, whichever promises
  // more; "off". How many are drafted, at most draft_tokens, depends on measured acceptance and the
  // measured time of steps. A draft model excludes tensor_parallel.
  std::string draft = "off";
  int64_t draft_tokens = 16;
  // Every token is chosen by attention over all rows, as with policy full; litecache's decode steps
  // only draft ("lookup,sparse" unless `draft` says otherwise). The answer is that of policy full
  // as far as a chunk of rows rounds as a single row does, and drafts with any policy imply it.
  bool exact = false;
  KvOptions kv;
  // Keep the KV of finished requests for later requests with the same beginning, as long as the
  // memory is not needed.
  bool prefix_cache = false;
  // With prefix_cache: also keep the KV in this directory, across restarts of the process, in at
  // most prefix_store_bytes bytes of files. One process per directory. Empty: no store on disk.
  std::filesystem::path prefix_store;
  uint64_t prefix_store_bytes = uint64_t{20} << 30;
  bool show_progress = true;  // show progress bars on a terminal while loading

  // Throws InvalidArgument naming the option, its value and the valid values.
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
  std::optional<uint64_t> seed;  // unset: drawn from the system and reported in the result
  std::vector<std::pair<int32_t, float>> logit_bias;

  // Throws InvalidArgument naming the field, its value and the valid range.
  void Validate() const;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids
  SamplingParams sampling;
  int64_t max_tokens = 0;         // 0: up to the end of the context
  bool generate = true;           // false: the request ends with its prompt, whatever max_tokens is
  int64_t min_tokens = 0;         // the answer does not end by itself before that many
  int n = 1;                      // samples of one prompt; the prompt is prefilled once
  std::vector<std::string> stop;  // strings; found across token boundaries, not part of the text
  std::vector<int32_t> stop_token_ids;  // in addition to the model's end-of-sequence ids
  bool include_stop = false;            // the text includes what stopped it
  // Token sequences that no answer contains.
  std::vector<std::vector<int32_t>> bad_words;
  bool ignore_eos = false;
  bool skip_special_tokens = true;           // in the text
  std::vector<int32_t> kept_special_tokens;  // except these
  // -1: none; k >= 0: log-probabilities of the chosen token and of the k most likely ones.
  int logprobs = -1;
  // The same for the prompt's tokens, from the second one on (Chunk::prompt_logprobs). The whole
  // prompt is computed then, since kept prefixes have no logits.
  int prompt_logprobs = -1;
  // The client that sent the request, any number: waiting clients take turns.
  uint64_t client = 0;
  // Restricts the text of every sample, each with its own clone. Null: no restriction.
  std::shared_ptr<const TokenConstraint> constraint;
  // Called from the engine's thread while the prompt is processed.
  std::function<void(int64_t done, int64_t total)> on_prefill;
  // Called from the engine's thread whenever chunks have been queued, for readers that do not block
  // in Next(): NextFor(0, ...) then returns one. Must be quick and must not throw.
  std::function<void()> on_chunks;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// A token of the prompt, given those before it.
struct PromptLogprob {
  TokenLogprob token;
  int64_t rank = 0;  // among all tokens; 1: the most likely one
  std::vector<TokenLogprob> top;
};

// One generated token of one sample.
struct Chunk {
  int sample = 0;               // 0 to n - 1
  std::vector<int32_t> tokens;  // new token ids (empty in a last chunk that only flushes text)
  // New text: whole UTF-8 characters, without anything that may begin a stop string.
  std::string text;
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top_logprobs;
  // Of the next tokens of the prompt; in chunks of sample 0 before its first token, without tokens.
  std::vector<PromptLogprob> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  int stop = -1;      // index of the string of Request::stop that ended the text; -1: none
  std::string error;  // the message, for kError
};

// What drafts achieved (EngineOptions::draft); all zero without them.
struct DraftStats {
  int64_t drafted = 0;   // tokens computed before they were chosen
  int64_t accepted = 0;  // those that were chosen and did not end the answer
  // Passes of samples through the model after their prompts: each gave one token, and one for
  // every accepted one.
  int64_t passes = 0;
  // Steps of samples that only drafted: decode steps (policy litecache), or the draft model's.
  int64_t draft_steps = 0;

  DraftStats& operator+=(const DraftStats& more) {
    drafted += more.drafted;
    accepted += more.accepted;
    passes += more.passes;
    draft_steps += more.draft_steps;
    return *this;
  }
  double tokens_per_pass() const {
    return passes > 0 ? 1 + static_cast<double>(accepted) / static_cast<double>(passes) : 0;
  }
};

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // prompt tokens whose KV was cached already
  int64_t generated_tokens = 0;  // over all samples
  double queue_seconds = 0;
  double prefill_seconds = 0;  // from the start of the first chunk to the first token
  double decode_seconds = 0;   // from the first token to the last
  uint64_t seed = 0;
  DraftStats drafts;
};

// A submitted request. Dropping the last handle cancels it.
class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
  // Blocks until the next chunk of any sample; nullopt when all samples have finished.
  virtual std::optional<Chunk> Next() = 0;
  // The same with a time limit in seconds; on nullopt, `timed_out` tells whether the time is over.
  virtual std::optional<Chunk> NextFor(double seconds, bool* timed_out) = 0;
  // Ends the request at the next step boundary; its memory is freed. Idempotent.
  virtual void Cancel() = 0;
  virtual RequestStats Stats() const = 0;
};

// How the memory is divided, decided once at start. Sizes in bytes.
struct MemoryPlan {
  uint64_t total = 0;  // the budget; with a GPU, of both memories together
  // With a GPU: the budgets of its memory (weights, buffers, the device's part of KV) and of host
  // memory (the host store). Without: both 0.
  uint64_t device_total = 0;
  uint64_t host_total = 0;
  uint64_t weights = 0;
  // Weights of the offloaded_layers layers, and experts, in host memory; `weights` includes the
  // buffers on the GPU that layers are copied to in every step (EngineOptions.weights_on_device)
  // and the copies of experts (experts_on_device).
  uint64_t host_weights = 0;
  int64_t offloaded_layers = 0;
  // Whether weights are used from mapped files. They are then part of the system's page cache,
  // which may drop and reread them under memory pressure and shares them with other processes.
  bool weights_mapped = false;
  uint64_t buffers = 0;       // activations and logits of the largest step
  int64_t prefill_chunk = 0;  // prompt tokens in the largest step
  kv::TierBytes kv;           // budgets of the KV cache
  // Of a draft model (EngineOptions::draft); `buffers` are its own.
  struct Draft {
    uint64_t weights = 0, buffers = 0;
    kv::TierBytes kv;
    uint64_t total() const { return weights + buffers + kv.total(); }
  } draft;
  // KV of one token over all layers and heads, if all of it is kept.
  uint64_t kv_per_token = 0;
  // KV of a sequence of largest_context tokens.
  kv::TierBytes kv_largest;
  // The device's part of kv_largest by purpose; empty for policies that do not break it down.
  std::vector<NamedBytes> kv_parts;
  std::string kv_policy;
  std::string kv_device_holds;  // describes the device's part of KV
  std::string retriever;        // empty for policy full
  std::string transfer;         // transfer engine; empty if no rows are transferred to a GPU
  int64_t layers = 0;
  int64_t kv_heads = 0;         // over all layers
  int64_t resident_heads = 0;   // resident ones among them, with policy litecache
  int64_t largest_context = 0;  // most tokens that one request can reach
  int64_t context_limit = 0;    // most tokens that the model or EngineOptions.max_context allows
  int64_t max_batch = 0;        // most sequences decoded together
  // The plan as several lines of text.
  std::string ToString() const;
};

// Statistics of prefix reuse; all zero without EngineOptions.prefix_cache.
struct PrefixStats {
  int64_t requests = 0;       // requests that have begun
  int64_t hits = 0;           // those whose prompt was found in part
  int64_t tokens = 0;         // prompt tokens found
  int64_t tokens_loaded = 0;  // those read from the store on disk
  int64_t sequences = 0;      // sequences kept at present
  kv::TierBytes bytes;        // bytes of their pages, which running requests may share
  int64_t evictions = 0;      // sequences dropped because a request needed the memory
  // The fields below are about EngineOptions.prefix_store.
  bool store = false;
  bool store_writing = false;  // false after a write has failed
  int64_t store_blocks = 0;
  uint64_t store_bytes = 0;
  uint64_t store_capacity = 0;
  uint64_t store_bytes_read = 0;
  uint64_t store_bytes_written = 0;
  int64_t store_evictions = 0;
  int64_t store_damaged = 0;  // unusable blocks that were removed
};

// One of the ranks of tensor parallelism, or of the replicas of data parallelism.
struct PartStats {
  std::string name;  // "rank 1", "replica 1"; numbered from 0
  // Requests are of replicas only: ranks have the same ones.
  int64_t running = 0;
  int64_t waiting = 0;
  kv::Stats kv;
};

struct EngineStats {
  int64_t running = 0;  // samples
  int64_t waiting = 0;  // requests
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  DraftStats drafts;
  kv::Stats kv;
  std::vector<kv::HeadCounters> kv_heads;  // [layers][kv_heads]; empty for policy full
  PrefixStats prefix;
  std::vector<PartStats> parts;  // with tensor or data parallelism
};

// A request for teacher forcing: computes the model's logits for given tokens.
struct ScoreRequest {
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;  // whose logits to return
  // Tokens from this index on are processed one at a time, in decode steps, so that the KV policy
  // acts as it would while generating them; -1: all tokens are processed in chunks, as a prompt.
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

  // Loads a directory in Hugging Face's layout, a GGUF file, or org/name from the local Hugging
  // Face cache. Throws FileError, Unsupported, InvalidArgument, CapacityError.
  static std::unique_ptr<Engine> Load(const std::string& model, const EngineOptions& options);
  // A model of a published shape with random weights. Its tokenizer has a token for every byte, and
  // spells the others as numbers. Throws InvalidArgument, CapacityError.
  static std::unique_ptr<Engine> Random(const std::string& shape, uint64_t seed,
                                        const EngineOptions& options);

  virtual const model::ModelConfig& config() const = 0;
  // Throws Error if the engine has none.
  virtual const tokenizer::Tokenizer& tokenizer() const = 0;
  // The model's directory or GGUF file; empty for random weights.
  virtual const std::filesystem::path& directory() const = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  // The KV policy's decisions at start, one fact a line (heads, thresholds, retriever, profile);
  // empty for policy full.
  virtual const std::vector<std::string>& kv_notes() const = 0;
  virtual EngineStats Stats() const = 0;
  // Defaults from the checkpoint's generation_config.json (temperature, top_p, ...), as far as it
  // has them.
  virtual const SamplingParams& default_sampling() const = 0;

  // Checks the request and queues it. Throws InvalidArgument (empty prompt, ids out of range,
  // parameters), and CapacityError with the numbers if it does not fit the context or the memory.
  virtual std::shared_ptr<RequestHandle> Submit(Request request) = 0;

  // Returns logits at the request's positions and every token's negative log-likelihood. Blocks;
  // calls from several threads run as one batch.
  virtual ScoreResult Score(
      const ScoreRequest& request,
      const std::function<void(int64_t done, int64_t total)>& progress = {}) = 0;

  // A short label such as "llama, 16.4M parameters, bf16".
  virtual std::string Description() const = 0;
};

}  // namespace litecache
