#include "device/cuda/step_wait.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "test_seed.h"

namespace litecache {
namespace {

TEST(StepWait, ShortWaitsOnlySpin) {
  const StepWait wait;
  for (const double left : {0.0, 1e-4, 9.9e-4}) {
    EXPECT_EQ(wait.For(left).sleep, 0) << left;
    EXPECT_GE(wait.For(left).awake_until, 1e-3) << left;
  }
}

// Steps of a few milliseconds on a machine whose threads wake up late: hardly a wait is too long
// (one can be after a dozen that were hardly late at all), and the thread spins no longer than the
// plan allows.
TEST(StepWait, ThreadsThatWakeLateSleepLess) {
  std::mt19937_64 random = testing::TestRandom();
  std::uniform_real_distribution<double> uniform(0, 1);
  int waits = 0, too_long = 0;
  for (int trial = 0; trial < 50; ++trial) {
    const double step = 3e-3 * std::pow(10, uniform(random));
    const double latest = 0.07 * std::min(step, 1e-2) * uniform(random);
    StepWait wait;
    wait.Woke(latest);
    for (int i = 0; i < 200; ++i) {
      const StepWait::Plan plan = wait.For(step);
      const double late = latest * uniform(random);
      ASSERT_GT(plan.sleep, 0);
      ++waits;
      if (plan.sleep + late > step) ++too_long;
      EXPECT_LE(step - plan.sleep, std::min(1.0001e-3, 0.0801 * step));
      EXPECT_GE(plan.awake_until, step);
      EXPECT_LE(plan.awake_until - step, 0.0501 * step);
      wait.Woke(late);
    }
  }
  EXPECT_LE(too_long, waits / 1000);
}

// When threads wake up in time again, less time is spent spinning.
TEST(StepWait, LatenessIsForgotten) {
  StepWait wait;
  wait.Woke(5e-4);
  const double before = wait.For(5e-3).sleep;
  for (int i = 0; i < 60; ++i) wait.Woke(1e-5);
  EXPECT_GT(wait.For(5e-3).sleep, before);
  EXPECT_NEAR(wait.For(5e-3).sleep, 0.95 * 5e-3 - 1e-5, 1e-6);
}

}  // namespace
}  // namespace litecache
