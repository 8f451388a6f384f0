#include "engine/step_parts.h"

#include <gtest/gtest.h>

#include <vector>

namespace litecache::engine {
namespace {

// Rows are identified by their tokens: 100 * owner + position.
struct Planned {
  StepPlan plan;
  std::vector<Group> groups{std::vector<Group>(8)};

  void AddDecode(size_t owner, int64_t past) {
    plan.decodes.push_back({&groups[owner], 0, Logits()});
    Add(owner, past, 1, 1, true);
  }
  void AddScoreDecode(size_t owner, int64_t past) {
    plan.prefills.push_back({&groups[owner], past, 1, Logits(), 1});
    Add(owner, past, 1, 1, true);
  }
  void AddChunk(size_t owner, int64_t begin, int64_t count, int64_t logit_rows) {
    plan.prefills.push_back({&groups[owner], begin, count, Logits(), logit_rows});
    Add(owner, begin, count, logit_rows, false);
  }

 private:
  int64_t Logits() const { return static_cast<int64_t>(plan.logit_rows.size()); }
  void Add(size_t owner, int64_t begin, int64_t count, int64_t logit_rows, bool decode) {
    plan.step.sequences.push_back(
        {static_cast<int64_t>(owner), plan.step.rows, count, begin, decode});
    for (int64_t i = 0; i < count; ++i) {
      plan.tokens.push_back(static_cast<int32_t>(100 * static_cast<int64_t>(owner) + begin + i));
      plan.positions.push_back(static_cast<int32_t>(begin + i));
      if (i >= count - logit_rows) plan.logit_rows.push_back(plan.step.rows + i);
    }
    plan.step.rows += count;
    if (decode) plan.step.decode_rows += count;
  }
};

TEST(StepParts, EveryRowGoesWithItsOwner) {
  Planned planned;
  planned.AddDecode(0, 7);
  planned.AddScoreDecode(1, 9);
  planned.AddDecode(2, 3);
  planned.AddDecode(3, 4);
  planned.AddChunk(4, 16, 5, 0);
  planned.AddChunk(5, 0, 3, 1);
  planned.AddChunk(6, 8, 4, 4);
  const std::vector<StepPlan> parts = DividePlan(planned.plan, 3);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].tokens, (std::vector<int32_t>{7, 109, 203}));
  EXPECT_EQ(parts[1].tokens, (std::vector<int32_t>{304}));
  EXPECT_EQ(parts[2].tokens, (std::vector<int32_t>{416, 417, 418, 419, 420}));
  EXPECT_EQ(parts[3].tokens, (std::vector<int32_t>{500, 501, 502}));
  EXPECT_EQ(parts[4].tokens, (std::vector<int32_t>{608, 609, 610, 611}));
  EXPECT_EQ(parts[0].positions, (std::vector<int32_t>{7, 9, 3}));
  EXPECT_EQ(parts[0].logit_rows, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(parts[2].logit_rows, (std::vector<int64_t>{}));
  EXPECT_EQ(parts[3].logit_rows, (std::vector<int64_t>{2}));
  EXPECT_EQ(parts[4].logit_rows, (std::vector<int64_t>{0, 1, 2, 3}));

  ASSERT_EQ(parts[0].decodes.size(), 2u);
  EXPECT_EQ(parts[0].decodes[1].group, &planned.groups[2]);
  EXPECT_EQ(parts[0].decodes[1].logit_row, 2);
  ASSERT_EQ(parts[0].prefills.size(), 1u);
  EXPECT_EQ(parts[0].prefills[0].group, &planned.groups[1]);
  EXPECT_EQ(parts[0].prefills[0].logit_row, 1);
  EXPECT_EQ(parts[1].decodes[0].logit_row, 0);
  EXPECT_EQ(parts[4].prefills[0].logit_row, 0);
  int64_t rows = 0;
  for (const StepPlan& part : parts) {
    rows += part.step.rows;
    EXPECT_EQ(part.step.rows, static_cast<int64_t>(part.tokens.size()));
    EXPECT_TRUE(part.step.decode_rows == 0 || part.step.decode_rows == part.step.rows);
    int64_t next = 0;
    for (const kv::StepSequence& sequence : part.step.sequences) {
      EXPECT_EQ(sequence.first_row, next);
      EXPECT_EQ(part.positions[static_cast<size_t>(next)], sequence.past);
      next += sequence.rows;
    }
  }
  EXPECT_EQ(rows, planned.plan.step.rows);
}

TEST(StepParts, KnowsWhetherARequestHasEnded) {
  Planned planned;
  planned.AddDecode(0, 7);
  planned.AddChunk(1, 0, 3, 1);
  EXPECT_FALSE(planned.plan.HasEnded());
  planned.groups[1].ended = true;
  EXPECT_TRUE(planned.plan.HasEnded());
  EXPECT_FALSE(DividePlan(planned.plan, 2).front().HasEnded());
}

}  // namespace
}  // namespace litecache::engine
