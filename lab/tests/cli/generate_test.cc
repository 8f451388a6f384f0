#include <gtest/gtest.h>

#include "cli/lossless.h"
#include "cli/program.h"
#include "kv/api/policy_registry.h"

namespace litecache::testing {
namespace {

TEST(Generate, PoliciesThatLoseNothingAgree) {
  std::vector<std::vector<std::string>> settings = {
      {"--kv-policy", "flexgen"},
      {"--kv-policy", "flexgen", "--flexgen-device-share", "0.3"},
      {"--kv-policy", "infinigen", "--infinigen-alpha", "100000", "--infinigen-cap", "1"},
      {"--kv-policy", "pqcache"}};  // prompts this short have no index
  std::erase_if(settings, [](const auto& words) { return !kv::WhyNoPolicy(words[1]).empty(); });
  ExpectTokensOfFull(settings);
}

}  // namespace
}  // namespace litecache::testing
