#include "lab/policies/retroinfer/options.h"

#include <gtest/gtest.h>

#include "lab/tests/settings_checks.h"

namespace litecache {
namespace {

TEST(RetroInferSettings, HaveARowForEveryMember) {
  testing::ExpectSettings(RetroInferOptionTable(), "retroinfer");
  testing::ExpectReads("retroinfer", {"sink_tokens", "recent_tokens"});
}

}  // namespace
}  // namespace litecache
