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

}  // namespace

void DeclareKvPolicyFlags(CLI::App& app, KvOptions* options) {
  DeclareFlexGen(app, &options->flexgen);
  DeclareKvpr(app, &options->kvpr);
  DeclareRetroInfer(app, &options->retroinfer);
}

}  // namespace litecache::cli
