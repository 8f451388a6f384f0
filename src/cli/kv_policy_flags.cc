#include "cli/kv_policy_flags.h"

#include <string>

namespace litecache::cli {
namespace {

template <class T>
void Add(CLI::App& app, const char* policy, const std::string& name, T& value,
         const std::string& help, const char* type) {
  app.add_option("--" + std::string(policy) + "-" + name, value, help)
      ->type_name(type)
      ->capture_default_str()
      ->group("KV policy " + std::string(policy));
}

void DeclareFlexGen(CLI::App& app, FlexGenOptions* o) {
  Add(app, "flexgen", "device-share", o->device_share,
      "Share of the KV heads whose rows stay on the device, 0 to 1", "SHARE");
}

void DeclareGroups(CLI::App& app, int64_t* groups) {
  app.add_option(
         "--batch-groups", *groups,
         "On a GPU: a step's sequences pass through each layer in so many groups, whose "
         "rows travel one after another (FlexGen's num_gpu_batches); 1: all together; on the CPU "
         "every sequence is one")
      ->type_name("N")
      ->capture_default_str()
      ->group("KV policies flexgen and kvpr");
}

void DeclareKvpr(CLI::App& app, KvprOptions* o) {
  Add(app, "kvpr", "split", o->split,
      "First tokens whose rows are recomputed from activations while the others travel; -1: as "
      "many as are fastest by the measured speed of link and products",
      "TOKENS");
  app.add_flag("--kvpr-chunked,!--no-kvpr-chunked", o->chunked,
               "Recompute while the activations travel, too (default: yes; no: the paper's eq. 11)")
      ->group("KV policy kvpr");
}

void DeclareRetroInfer(CLI::App& app, RetroInferOptions* o) {
  constexpr const char* kPolicy = "retroinfer";
  Add(app, kPolicy, "cluster", o->cluster_tokens, "Tokens a cluster, on average", "TOKENS");
  Add(app, kPolicy, "segment", o->segment_tokens, "Tokens of a prompt that are clustered apart",
      "TOKENS");
  Add(app, kPolicy, "update", o->update_tokens,
      "Generated tokens that become clusters together; shorter prompts are not clustered",
      "TOKENS");
  Add(app, kPolicy, "iterations", o->iterations, "Iterations of k-means", "N");
  Add(app, kPolicy, "retrieval", o->retrieval, "Share of the clusters attended exactly", "SHARE");
  Add(app, kPolicy, "estimation", o->estimation,
      "Share of the clusters estimated by their centroids", "SHARE");
  Add(app, kPolicy, "block", o->block_tokens, "Rows the block cache keeps and moves together",
      "TOKENS");
  Add(app, kPolicy, "cache", o->cache,
      "Blocks cached on the device, as a multiple of those a step retrieves", "X");
}

void DeclareInfiniGen(CLI::App& app, InfiniGenOptions* o) {
  constexpr const char* kPolicy = "infinigen";
  Add(app, kPolicy, "partial", o->partial, "Share of the skewed channels that rows are chosen by",
      "SHARE");
  Add(app, kPolicy, "alpha", o->alpha, "Fetch rows whose score is within this of the best one's",
      "X");
  Add(app, kPolicy, "cap", o->cap, "Fetch at most this share of the context", "SHARE");
  Add(app, kPolicy, "dense-layers", o->dense_layers,
      "First layers that attend every row, at least 1", "N");
}

void DeclarePqCache(CLI::App& app, PqCacheOptions* o) {
  constexpr const char* kPolicy = "pqcache";
  Add(app, kPolicy, "sink", o->sink_tokens, "First tokens, always attended", "TOKENS");
  Add(app, kPolicy, "share", o->share,
      "Rows attended, as a share of the prompt: half of them top rows, half recent ones", "SHARE");
  Add(app, kPolicy, "subspaces", o->subspaces, "Parts of a key that are quantized apart", "N");
  Add(app, kPolicy, "bits", o->bits, "Bits of a part's code, 1 to 8", "N");
  Add(app, kPolicy, "iterations", o->iterations,
      "Iterations of k-means; 0: 3 to 300, as many as a layer's prefill leaves time for", "N");
  Add(app, kPolicy, "cache", o->cache_tokens, "Rows a layer that the block cache keeps", "TOKENS");
  Add(app, kPolicy, "block", o->block_tokens, "Rows that enter the block cache together", "TOKENS");
}

}  // namespace

void DeclareKvPolicyFlags(CLI::App& app, KvOptions* options) {
  DeclareFlexGen(app, &options->flexgen);
  DeclareKvpr(app, &options->kvpr);
  DeclareGroups(app, &options->batch_groups);
  DeclareRetroInfer(app, &options->retroinfer);
  DeclareInfiniGen(app, &options->infinigen);
  DeclarePqCache(app, &options->pqcache);
}

}  // namespace litecache::cli
