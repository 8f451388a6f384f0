#include "engine/plan_settings.h"

namespace litecache::engine {

std::vector<PlanSetting> PlanSettings() { return {{"flexgen", "auto", "opt-125m", false}}; }

}  // namespace litecache::engine
