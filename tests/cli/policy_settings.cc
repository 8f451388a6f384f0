#include "cli/policy_settings.h"

namespace litecache::testing {

std::vector<PolicySetting> PolicySettings() {
  return {{.name = "full", .exact = true},
          {.name = "kvpr",
           .flags = {"--kvpr-split", "100"},
           .settings = "kvpr_split=100",
           .exact = true},
          {.name = "litecache",
           .flags = {"--recent", "16", "--carry", "0"},
           .settings = "recent=16,carry=0"},
          {.name = "streaming", .flags = {"--recent", "16"}, .settings = "recent=16"}};
}

}  // namespace litecache::testing
