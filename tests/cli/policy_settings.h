// The KV policies that policies_test.cc runs, with options small enough for prompts of a few
// hundred tokens: fewer rows must be selected than exist.
#pragma once

#include <string>
#include <vector>

namespace litecache::testing {

struct PolicySetting {
  std::string name;
  std::vector<std::string> flags = {};
  std::string settings = "";  // the same in the syntax of --config
  bool exact = false;         // attends every row
  bool predicts = false;      // always, which models with sliding windows refuse
  bool estimates = false;     // the weight of rows, and refuses models that cap scores

  std::string Configuration() const {
    return name + ":policy=" + name + (settings.empty() ? "" : "," + settings);
  }
};

// For the program under test; full comes first.
std::vector<PolicySetting> PolicySettings();

}  // namespace litecache::testing
