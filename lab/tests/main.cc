// Runs tests with the policies of lab/ registered.
#include <gtest/gtest.h>

#include "lab/register_policies.h"

int main(int argc, char** argv) {
  litecache::lab::RegisterPolicies();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
