#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "expect_error.h"
#include "litecache/engine.h"
#include "option_table_checks.h"

namespace litecache {
namespace {

TEST(EngineOptionTable, HasARowForEveryMember) {
  testing::ExpectSoundTable(EngineOptionTable());
  // The rows of the KV cache's options follow, for the member kv.
  const size_t own = EngineOptionTable().size() - KvOptionTable().size();
  EXPECT_EQ(own + 1, testing::CountFields<EngineOptions>());
}

TEST(EngineOptions, ErrorsNameTheOptionAndItsValue) {
  EXPECT_NO_THROW(EngineOptions().Validate());
  EngineOptions options;
  options.weights_on_device = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(options.Validate(), InvalidArgument, "option weights_on_device", "nan");
  options = {};
  options.max_batch = -1;
  EXPECT_ERROR(options.Validate(), InvalidArgument, "option max_batch", "'-1'", "from 0 to 65536");
  EXPECT_ERROR(options.Validate(OptionNames::kFlags), InvalidArgument, "--max-batch", "'-1'");
  options = {};
  options.kv.eta = 2;
  EXPECT_ERROR(options.Validate(), InvalidArgument, "option eta", "'2'");
  options = {};
  options.prefix_store = "kept";
  EXPECT_ERROR(options.Validate(), InvalidArgument, "prefix_store", "kept", "prefix_cache");
}

}  // namespace
}  // namespace litecache
