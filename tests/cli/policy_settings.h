// The KV policies that policies_test.cc runs, with options small enough for prompts of a few
// hundred tokens: what is chosen must be less than all there is.
#pragma once

#include <string>
#include <vector>

namespace litecache::testing {

struct PolicySetting {
  std::string name;
  std::vector<std::string> flags = {};
  std::string settings = "";  // the same, as --config has them
  bool exact = false;         // attends every row

  std::string Configuration() const {
    return name + ":policy=" + name + (settings.empty() ? "" : "," + settings);
  }
};

// Of the program under test; full first.
std::vector<PolicySetting> PolicySettings();

}  // namespace litecache::testing
