#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "kv/host_device.h"
#include "kv/pages/device_pages_cuda.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr int64_t kLists = 5, kPageTokens = 4;

class DevicePagesTest : public ::testing::Test {
 protected:
  struct Follower {
    DevicePages pages;
    int64_t uploads = 0, entries = 0;  // calls of put, and the number of pages in them
  };

  SequenceId Add(SequenceId id) {
    followers_.emplace(id, std::make_unique<Follower>());
    return id;
  }
  SequenceId Create() { return Add(table_.Create()); }
  void Release(SequenceId id) {
    table_.Release(id);
    followers_.erase(id);
  }
  void Append(SequenceId id, int64_t rows, int64_t from = -1) {
    table_.Grow(std::vector<SequenceTable::Growth>{{id, rows, from}});
    table_.Commit(id, rows);
  }
  // Follows, and compares everything that the device has afterwards. Pages of the table have
  // `parts` lists each.
  void Follow(SequenceId id, int64_t parts = 1) {
    Follower& of = *followers_.at(id);
    std::byte* const* const* lists = table_.Lists(id);
    const auto at = [&](int64_t list, int64_t b) { return lists[list / parts][b] + list % parts; };
    of.pages.Follow(device_, table_, id, kLists * parts, at,
                    [&](std::byte** target, std::byte* const* pages, size_t count) {
                      std::copy_n(pages, count, target);
                      ++of.uploads;
                      of.entries += static_cast<int64_t>(count);
                    });
    for (int64_t b = 0; b < table_.Blocks(id); ++b) {
      for (int64_t list = 0; list < kLists * parts; ++list) {
        ASSERT_EQ(of.pages.device()[b * kLists * parts + list], at(list, b))
            << "sequence " << id << " list " << list << " block " << b;
      }
    }
  }

  HostDevice device_;
  PagePool pool_{device_, kPageTokens * 16, 2000 * kPageTokens * 16};
  SequenceTable table_{{kLists, kPageTokens, 16}, pool_};
  std::map<SequenceId, std::unique_ptr<Follower>> followers_;
};

TEST_F(DevicePagesTest, SendsABlockWhereOneBeginsAndNothingElsewhere) {
  const SequenceId id = Create();
  Follow(id);
  EXPECT_EQ(followers_.at(id)->uploads, 0) << "an empty sequence has no pages";
  Append(id, 6 * kPageTokens);
  Follow(id);
  int64_t entries = followers_.at(id)->entries;
  EXPECT_EQ(entries, 6 * kLists);
  // The memory has room for twice as many.
  for (int64_t row = 0; row < 5 * kPageTokens; ++row) {
    Append(id, 1);
    Follow(id);
    if (row % kPageTokens == 0) entries += kLists;
    EXPECT_EQ(followers_.at(id)->entries, entries) << "row " << row;
  }
}

TEST_F(DevicePagesTest, SendsTheBlockThatWasCopiedForItsWriter) {
  const SequenceId parent = Create();
  Append(parent, 3 * kPageTokens + 1);
  Follow(parent);
  const SequenceId child = Add(table_.Fork(parent));
  Follow(child);
  const int64_t sent = followers_.at(child)->entries;
  EXPECT_EQ(sent, 4 * kLists);
  Append(parent, 1);  // copies the pages it shares
  Append(child, 1);   // is the only owner of its pages
  Follow(parent);
  Follow(child);
  EXPECT_EQ(followers_.at(parent)->entries, 5 * kLists);
  EXPECT_EQ(followers_.at(child)->entries, sent);
}

TEST_F(DevicePagesTest, TurnsToAnotherSequence) {
  const SequenceId first = Create(), second = Create();
  Append(first, 5 * kPageTokens);
  Append(second, 5 * kPageTokens);
  Follow(first);
  followers_.at(second) = std::move(followers_.at(first));
  Follow(second);  // the same number of changes
  Append(second, kPageTokens);
  Follow(second);
  const SequenceId empty = Create();
  followers_.at(empty) = std::move(followers_.at(second));
  Follow(empty);
  Append(empty, 1);
  Follow(empty);
}

TEST_F(DevicePagesTest, ManyListsOfAPageFollowIt) {
  const SequenceId id = Create();
  for (int64_t rows : {1, 3, 1, 9, 30}) {
    Append(id, rows);
    Follow(id, 3);
  }
}

TEST_F(DevicePagesTest, MakesUpForAnAllocationThatFailed) {
  const SequenceId id = Create();
  Append(id, 2 * kPageTokens);
  Follow(id);
  Append(id, 100 * kPageTokens);
  device_.set_limit(HostDevice::live());
  EXPECT_THROW(Follow(id), CapacityError);
  device_.set_limit(SIZE_MAX);
  Follow(id);
}

// Rare updates miss nothing: neither new blocks nor blocks copied elsewhere.
TEST_F(DevicePagesTest, RandomLivesAreFollowed) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 300; ++i) {
      std::vector<SequenceId> ids;
      for (const auto& [id, follower] : followers_) ids.push_back(id);
      const auto any = [&] { return ids[random() % ids.size()]; };
      switch (ids.empty() || pool_.used() > 1000 ? random() % 2 : random() % 10) {
        case 0:
          Create();
          break;
        case 1:
          if (!ids.empty()) Release(any());
          break;
        case 2: {
          const SequenceId parent = any();
          const int64_t length = table_.Length(parent);
          Add(table_.ForkPrefix(
              parent, random() % 2 == 0 ? length : static_cast<int64_t>(random() % (length + 1))));
          break;
        }
        case 3: {
          const SequenceId id = any();
          const auto from = static_cast<int64_t>(random() % (table_.Length(id) + 1));
          Append(id, static_cast<int64_t>(random() % 3), from);
          break;
        }
        case 4:
        case 5:
          Follow(any());
          break;
        default:
          Append(any(), 1 + static_cast<int64_t>(random() % (random() % 3 == 0 ? 20 : 2)));
      }
      if (HasFatalFailure()) return;
    }
    for (const auto& [id, follower] : followers_) Follow(id);
    while (!followers_.empty()) Release(followers_.begin()->first);
  }
}

}  // namespace
}  // namespace litecache::kv
