#include "cli/kv_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace litecache::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> UnusedOf(const std::string& arguments) {
  CLI::App app;
  KvFlags flags;
  flags.Declare(app);
  app.parse(arguments);
  return flags.Unused();
}

TEST(KvFlags, NamesWhatAPolicyDoesNothingWith) {
  EXPECT_THAT(UnusedOf(""), IsEmpty());
  EXPECT_THAT(UnusedOf("--device-memory 1GiB --host-memory 1GiB"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-budget 5% --retriever quest --no-delta --prefetch 1"),
              ElementsAre("--kv-budget", "--retriever", "--prefetch", "--delta"));
  EXPECT_THAT(UnusedOf("--kv-policy litecache --kv-budget 5% --retriever quest --prefetch 1"),
              IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy litecache --kvpr-split 4"), ElementsAre("--kvpr-split"));
  EXPECT_THAT(UnusedOf("--kv-policy kvpr --kvpr-split 4 --host-rows int4"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy kvpr --batch-groups 2"), IsEmpty());
  EXPECT_THAT(UnusedOf("--kv-policy full --kvpr-split 4"), ElementsAre("--kvpr-split"));
}

}  // namespace
}  // namespace litecache::cli
