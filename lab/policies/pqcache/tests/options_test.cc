#include "lab/policies/pqcache/options.h"

#include <gtest/gtest.h>

#include "lab/tests/settings_checks.h"

namespace litecache {
namespace {

TEST(PqCacheSettings, HaveARowForEveryMember) {
  testing::ExpectSettings(PqCacheOptionTable(), "pqcache");
  testing::ExpectReads("pqcache", {"transfer", "measure_recall"});
}

}  // namespace
}  // namespace litecache
