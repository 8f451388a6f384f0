#include "lab/policies/infinigen/options.h"

#include <gtest/gtest.h>

#include "lab/tests/settings_checks.h"

namespace litecache {
namespace {

TEST(InfiniGenSettings, HaveARowForEveryMember) {
  testing::ExpectSettings(InfiniGenOptionTable(), "infinigen");
  testing::ExpectReads("infinigen", {"profile", "transfer"});
}

}  // namespace
}  // namespace litecache
