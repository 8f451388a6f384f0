// The parts of a cache share one budget of device memory, whichever of them needs it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kv/cache_plan.h"
#include "kv/host_device.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv {
namespace {

// Rows of 64 KiB pages, and a window of about 10 MiB a page; states of about 5 MiB.
Layout Large() {
  Layout layout{.layers = 3,
                .q_heads = 8,
                .kv_heads = 8,
                .head_dim = 128,
                .dtype = DType::kF32,
                .window = 1200,
                .windowed = {true, false, false}};
  layout.delta = {.key_heads = 16, .value_heads = 80, .key_dim = 128, .value_dim = 128, .taps = 4};
  layout.recurrent = {false, false, true};
  return layout;
}

void Advance(Cache& cache, SequenceId id, int64_t rows) {
  const Step step{.sequences = {{.id = id, .rows = rows, .past = cache.Length(id)}}, .rows = rows};
  cache.BeginStep(step);
  cache.EndStep(step);
}

class SharedBudgetTest : public ::testing::Test {
 protected:
  SharedBudgetTest() : plan_(MakeCachePlan(Large(), {.policy = "full"}, nullptr)) {
    cache_ = plan_->Create(device_, budget_);
  }

  HostDevice device_;
  std::unique_ptr<CachePlan> plan_;
  // A long sequence, or many short ones.
  const TierBytes budget_{.device = uint64_t{512} << 20};
  // Memory for rows is allocated in slabs of many pages.
  const uint64_t most_ = budget_.device + PagePool::kSlabBytes;
  std::unique_ptr<Cache> cache_;
};

TEST_F(SharedBudgetTest, MemoryMovesBetweenTheParts) {
  for (int round = 0; round < 3; ++round) {
    const SequenceId longest = cache_->Create();
    while (cache_->GetStats().used.device + plan_->BytesFor(4096).device < budget_.device) {
      Advance(*cache_, longest, 4096);
      EXPECT_LE(HostDevice::live(), most_);
    }
    cache_->Release(longest);
    std::vector<SequenceId> many;
    // A prompt chunk needs two pages of a window for a while.
    while (cache_->GetStats().used.device + plan_->BytesFor(64).device <= budget_.device) {
      many.push_back(cache_->Create());
      Advance(*cache_, many.back(), 64);
      EXPECT_LE(HostDevice::live(), most_) << many.size() << " sequences";
    }
    EXPECT_GT(many.size(), 10u);
    EXPECT_GT(cache_->GetStats().used.device, budget_.device * 9 / 10);
    for (const SequenceId id : many) cache_->Release(id);
  }
}

TEST_F(SharedBudgetTest, NoPartTakesWhatTheOthersUse) {
  std::vector<SequenceId> ids;
  EXPECT_THROW(
      while (true) {
        ids.push_back(cache_->Create());
        Advance(*cache_, ids.back(), 64);
        ASSERT_LE(cache_->GetStats().used.device, budget_.device);
      },
      CapacityError);
  EXPECT_GT(ids.size(), 10u);
  // The sequence that had no room runs once another one has gone.
  cache_->Release(ids.front());
  Advance(*cache_, ids.back(), 64);
  EXPECT_LE(cache_->GetStats().used.device, budget_.device);
  for (size_t i = 1; i < ids.size(); ++i) cache_->Release(ids[i]);
  EXPECT_EQ(cache_->GetStats().used, TierBytes{});
}

// The device has less than the budget: what one part has without using it serves the others.
TEST_F(SharedBudgetTest, ADeviceWithoutMemoryGetsItFromTheOtherParts) {
  const SequenceId longest = cache_->Create();
  Advance(*cache_, longest, 30000);
  cache_->Release(longest);
  device_.set_limit(HostDevice::live());
  const SequenceId next = cache_->Create();
  const SequenceId other = cache_->Create();
  Advance(*cache_, next, 64);
  Advance(*cache_, other, 64);
  EXPECT_EQ(cache_->Length(other), 64);
}

}  // namespace
}  // namespace litecache::kv
