#include "lab/policies/flexgen/options.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "lab/tests/settings_checks.h"

namespace litecache {
namespace {

TEST(FlexGenSettings, HaveARowForEveryMember) {
  testing::ExpectSettings(FlexGenOptionTable(), "flexgen");
  testing::ExpectReads("flexgen", {"batch_groups", "host_rows"});
}

TEST(FlexGenSettings, AreCheckedWithTheOtherOptions) {
  KvOptions options;
  for (const double share : {1.01, -0.1}) {
    options.settings.Of<FlexGenOptions>().device_share = share;
    EXPECT_ERROR(options.Validate(), InvalidArgument, "flexgen.device_share", "not a share");
  }
  options.settings.Of<FlexGenOptions>().device_share = 1;
  EXPECT_NO_THROW(options.Validate());
}

}  // namespace
}  // namespace litecache
