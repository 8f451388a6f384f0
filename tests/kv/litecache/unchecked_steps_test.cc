#include "kv/litecache/unchecked_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

namespace litecache::kv {
namespace {

using ::testing::UnorderedElementsAre;

Step StepOf(std::initializer_list<SequenceId> ids) {
  Step step;
  for (const SequenceId id : ids) step.sequences.push_back({.id = id, .decode = true});
  return step;
}

TEST(UncheckedSteps, StepsCountUntilTheyAreWaitedFor) {
  UncheckedSteps steps;
  steps.Begin(StepOf({1, 2}));
  steps.Begin(StepOf({3}));
  EXPECT_THAT(steps.Sequences(), UnorderedElementsAre(1, 2, 3));
  steps.Checked();
  steps.Begin(StepOf({4}));
  EXPECT_THAT(steps.Sequences(), UnorderedElementsAre(4));
}

// A wait in the middle of a step covers the operations issued so far, not later ones.
TEST(UncheckedSteps, AStepGoesOnAfterAWait) {
  UncheckedSteps steps;
  steps.Begin(StepOf({1}));
  steps.Issue();
  steps.Checked();
  steps.Issue();
  steps.Begin(StepOf({2}));
  EXPECT_THAT(steps.Sequences(), UnorderedElementsAre(1, 2));
}

}  // namespace
}  // namespace litecache::kv
