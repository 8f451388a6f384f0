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

}  // namespace

void DeclareKvPolicyFlags(CLI::App& app, KvOptions* options) {
  DeclareFlexGen(app, &options->flexgen);
  DeclareKvpr(app, &options->kvpr);
}

}  // namespace litecache::cli
