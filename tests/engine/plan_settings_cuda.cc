#include "engine/plan_settings.h"

namespace litecache::engine {

std::vector<PlanSetting> PlanSettings() {
  return {{"full"},
          {"streaming"},
          {"litecache", "gpu-pull"},
          {"litecache", "copy"},
          {"litecache", "cpu-push"},
          {.policy = "litecache", .resident_heads = "auto"},
          {"kvpr", "auto", "opt-125m", false}};
}

}  // namespace litecache::engine
