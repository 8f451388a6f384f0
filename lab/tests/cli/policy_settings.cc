#include "cli/policy_settings.h"

#include "kv/api/policy_registry.h"

namespace litecache::testing {

// The existing policies of lab/policies/, besides full.
std::vector<PolicySetting> PolicySettings() {
  std::vector<PolicySetting> settings = {
      {.name = "full", .exact = true},
      {.name = "flexgen", .exact = true},
      // One of the fixtures has two layers.
      {.name = "infinigen",
       .flags = {"--infinigen-dense-layers", "1"},
       .settings = "infinigen.dense_layers=1",
       .predicts = true},
      {.name = "retroinfer",
       .flags = {"--recent", "16", "--retroinfer-update", "64", "--retroinfer-retrieval", "0.2",
                 "--retroinfer-estimation", "0.2"},
       .settings = "recent=16,retroinfer.update_tokens=64,retroinfer.retrieval=0.2,"
                   "retroinfer.estimation=0.2",
       .estimates = true},
      // Otherwise the available time would determine the quality of the codes.
      {.name = "pqcache",
       .flags = {"--pqcache-iterations", "4"},
       .settings = "pqcache.iterations=4"}};
  std::erase_if(settings, [](const PolicySetting& setting) {
    return !kv::WhyNoPolicy(setting.name).empty();
  });
  return settings;
}

}  // namespace litecache::testing
