// The policies whose memory plans plan_cuda_test.cc compares with the memory allocated.
#pragma once

#include <string>
#include <vector>

namespace litecache::engine {

struct PlanSetting {
  std::string policy, transfer = "auto", shape = "qwen2.5-0.5b";
  bool exact = true;  // false: the plan is only a limit, since usage depends on the link's speed
  std::string resident_heads = "none";
};

// The settings of the program under test.
std::vector<PlanSetting> PlanSettings();

}  // namespace litecache::engine
