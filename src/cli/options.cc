#include "cli/options.h"

#include "base/logging.h"
#include "base/progress.h"
#include "cli/command.h"
#include "io/generation_config.h"

namespace litecache::cli {
namespace {

constexpr const char* kGeneral = "General";
constexpr const char* kModel = "Model";
constexpr const char* kPrefix = "Prefixes";
constexpr const char* kSampling = "Sampling";

}  // namespace

CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& help) {
  // CLI11 lets a list option take all words that follow, and would split "[a,b]".
  return app.add_option(name, values, help)->allow_extra_args(false)->type_name("TEXT");
}

void GeneralOptions::Declare(CLI::App& app) {
  app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")
      ->envname("LITECACHE_LOG_LEVEL")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->group(kGeneral);
  app.add_flag("-q,--quiet", quiet, "Results and errors only: no progress bars, no summary")
      ->group(kGeneral);
  app.add_flag("--no-progress", no_progress,
               "No progress bars (there are none anyway where standard error is no terminal)")
      ->group(kGeneral);
}

void GeneralOptions::Apply() const {
  InitLogging(log_level);
  if (quiet || no_progress) ProgressBar::Quiet(true);
}

void EngineFlags::DeclareModel(CLI::App& app, bool required) {
  auto* option = app.add_option("-m,--model", model,
                                "Model directory in Hugging Face's layout, or org/name from the "
                                "local Hugging Face cache")
                     ->envname("LITECACHE_MODEL")
                     ->type_name("DIR")
                     ->group(kModel);
  if (required) option->required();
}

void EngineFlags::DeclareThreads(CLI::App& app) {
  app.add_option("-t,--threads", threads, "CPU threads; 0: one a core")
      ->envname("LITECACHE_THREADS")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""))
      ->capture_default_str()
      ->group(kModel);
}

void EngineFlags::DeclareRun(CLI::App& app) {
  DeclareThreads(app);
  app.add_option("--device", device,
                 "What runs the model: cpu, cuda (the first GPU), cuda:N, or auto: a GPU where "
                 "there is one, else the CPU")
      ->envname("LITECACHE_DEVICE")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kModel);
  app.add_option("--memory", memory,
                 "Memory for weights, KV cache and buffers together, e.g. 48GiB; with a GPU: host "
                 "memory for the KV store; default: 90% of what is available")
      ->type_name("SIZE")
      ->group(kModel);
  app.add_option("--weights-on-device", weights_on_device,
                 "Share of the layers whose weights stay in the GPU's memory; those of the others "
                 "come from host memory in every step, beside what it computes [100%]")
      ->type_name("SHARE")
      ->group(kModel);
  app.add_option("-c,--max-context", max_context,
                 "Tokens a request may reach, e.g. 16k; default: the model's limit, or what the "
                 "memory allows")
      ->type_name("TOKENS")
      ->group(kModel);
  app.add_option("--dtype", dtype,
                 "Arithmetic: auto (the checkpoint's own type) or f32 (weights widened, products "
                 "and KV cache in f32)")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"auto", "f32"}).description(""))
      ->capture_default_str()
      ->group(kModel);
  app.add_option("--max-batch", max_batch, "Sequences decoded together at most")
      ->type_name("N")
      ->check(CLI::Range(1, 65536).description(""))
      ->capture_default_str()
      ->group(kModel);
  app.add_option(
         "--prefill-chunk", prefill_chunk,
         "Prompt tokens processed in one step; more is faster and takes more memory; 0: 512 "
         "on a CPU, on a GPU up to 8192, by its memory")
      ->type_name("TOKENS")
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->capture_default_str()
      ->group(kModel);
  kv.Declare(app);
}

void EngineFlags::DeclarePrefix(CLI::App& app, const std::string& cache) {
  prefix_cache = cache;
  app.add_option("--prefix-cache", prefix_cache,
                 "on: requests that begin like an earlier one reuse its KV, which stays until "
                 "another needs the memory; off")
      ->type_name("on|off")
      ->check(CLI::IsMember({"on", "off"}).description(""))
      ->capture_default_str()
      ->group(kPrefix);
  app.add_option("--prefix-store", prefix_store,
                 "Keep that KV in this directory as well, for after a restart; one process a "
                 "directory")
      ->type_name("DIR")
      ->group(kPrefix);
  app.add_option("--prefix-store-size", prefix_store_size,
                 "The most --prefix-store may hold; what was used longest ago goes first [20GiB]")
      ->type_name("SIZE")
      ->group(kPrefix);
}

EngineOptions EngineFlags::ToEngineOptions() const {
  EngineOptions options;
  options.dtype = dtype;
  options.device = device;
  options.threads = threads;
  options.memory = memory.value;
  options.max_context = max_context.value;
  options.weights_on_device = weights_on_device.value;
  options.max_batch = max_batch;
  options.prefill_chunk = prefill_chunk;
  options.prefix_cache = prefix_cache == "on";
  if (!options.prefix_cache && !prefix_store.empty()) {
    throw UsageError("--prefix-store needs --prefix-cache on");
  }
  options.prefix_store = prefix_store;
  options.prefix_store_bytes = prefix_store_size.value;
  options.kv = kv.ToKvOptions();
  return options;
}

SamplingParams ModelDefaults(const Engine& engine) {
  SamplingParams params = engine.default_sampling();
  const auto config = io::GenerationConfig::FromDirectory(engine.directory());
  if (!config.do_sample.value_or(false)) params.temperature = 0;
  return params;
}

void SamplingFlags::Declare(CLI::App& app, const std::string& max_tokens_help) {
  app.add_option("-n,--max-tokens", max_tokens, max_tokens_help)
      ->type_name("TOKENS")
      ->group(kSampling);
  app.add_option("--temperature,--temp", temperature,
                 "0: greedy; default: the model's generation_config.json, else greedy (1 when "
                 "--top-k, --top-p, --min-p or --samples ask for sampling)")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--top-k", top_k, "Sample from the K most likely tokens; 0: off")
      ->type_name("K")
      ->group(kSampling);
  app.add_option("--top-p", top_p, "Sample from the likeliest tokens that sum up to P; 1: off")
      ->type_name("P")
      ->group(kSampling);
  app.add_option("--min-p", min_p, "Drop tokens less likely than P times the likeliest; 0: off")
      ->type_name("P")
      ->group(kSampling);
  app.add_option("--repetition-penalty", repetition_penalty,
                 "Divide the logits of tokens seen in prompt or answer; 1: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--presence-penalty", presence_penalty,
                 "Subtract from the logits of tokens of the answer; 0: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("--frequency-penalty", frequency_penalty,
                 "Subtract for every time a token occurred in the answer; 0: off")
      ->type_name("X")
      ->group(kSampling);
  app.add_option("-s,--seed", seed, "The same seed gives the same text; default: a random one")
      ->type_name("N")
      ->group(kSampling);
  AddRepeated(app, "--stop", stop, "Stop before this text; can be given several times")
      ->group(kSampling);
  app.add_option("--stop-token", stop_tokens,
                 "Stop at this token id, beside the model's own; can be given several times")
      ->allow_extra_args(false)
      ->type_name("ID")
      ->group(kSampling);
  app.add_flag("--ignore-eos", ignore_eos, "Go on past the end-of-sequence token")
      ->group(kSampling);
}

SamplingParams SamplingFlags::Merge(const SamplingParams& defaults, bool wants_sampling) const {
  SamplingParams params = defaults;
  if (top_k) params.top_k = *top_k;
  if (top_p) params.top_p = *top_p;
  if (min_p) params.min_p = *min_p;
  if (repetition_penalty) params.repetition_penalty = *repetition_penalty;
  if (presence_penalty) params.presence_penalty = *presence_penalty;
  if (frequency_penalty) params.frequency_penalty = *frequency_penalty;
  if (seed) params.seed = *seed;
  if (temperature) {
    params.temperature = *temperature;
  } else if (params.temperature == 0 && (wants_sampling || top_k || top_p || min_p)) {
    params.temperature = 1;
  }
  params.Validate();
  return params;
}

void SamplingFlags::ApplyStops(Request* request) const {
  for (const auto& text : stop) {
    if (text.empty()) throw UsageError("--stop: the text is empty");
  }
  request->stop = stop;
  request->stop_token_ids = stop_tokens;
  request->ignore_eos = ignore_eos;
}

}  // namespace litecache::cli
