#include "device/pinned_arenas.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "test_seed.h"

namespace litecache {
namespace {

// Address space that is never touched replaces pinned memory.
struct Memory {
  std::set<std::byte*> arenas;
  int pinned = 0;
  bool room = true;

  PinnedArenas::Source Source() {
    return {.pin =
                [this] {
                  auto* arena = static_cast<std::byte*>(std::malloc(PinnedArenas::kArenaBytes));
                  arenas.insert(arena);
                  ++pinned;
                  return arena;
                },
            .unpin =
                [this](std::byte* arena) {
                  EXPECT_EQ(arenas.erase(arena), 1u);
                  std::free(arena);
                },
            .room = [this] { return room; }};
  }
};

TEST(PinnedArenas, KeepNothingUnlessAsked) {
  Memory memory;
  PinnedArenas arenas(memory.Source());
  EXPECT_EQ(arenas.Take(PinnedArenas::kArenaBytes), nullptr);
  int elsewhere = 0;
  EXPECT_FALSE(arenas.Give(&elsewhere));
  arenas.Keep();
  EXPECT_EQ(arenas.Take(PinnedArenas::kArenaBytes / 3), nullptr);  // does not divide an arena
  EXPECT_EQ(arenas.Take(2 * PinnedArenas::kArenaBytes), nullptr);
  EXPECT_EQ(arenas.Take(PinnedArenas::kLeastBlock / 2), nullptr);
  EXPECT_EQ(memory.pinned, 0);
  // A block in use outlives the last Forget(); its arena is unpinned with it.
  void* const block = arenas.Take(PinnedArenas::kLeastBlock);
  ASSERT_NE(block, nullptr);
  arenas.Forget();
  EXPECT_EQ(memory.arenas.size(), 1u);
  EXPECT_TRUE(arenas.Give(block));
  EXPECT_TRUE(memory.arenas.empty());
}

TEST(PinnedArenas, ServeOneSizeAfterAnother) {
  Memory memory;
  PinnedArenas arenas(memory.Source());
  arenas.Keep();
  for (const size_t size :
       {PinnedArenas::kArenaBytes, PinnedArenas::kArenaBytes / 16, PinnedArenas::kArenaBytes / 4}) {
    std::vector<void*> blocks;
    for (size_t i = 0; i < 3 * PinnedArenas::kArenaBytes / size; ++i) {
      blocks.push_back(arenas.Take(size));
    }
    for (void* block : blocks) EXPECT_TRUE(arenas.Give(block));
  }
  EXPECT_EQ(memory.pinned, 3);
  EXPECT_EQ(arenas.pinned(), 3 * PinnedArenas::kArenaBytes);
  memory.room = false;  // free arenas are unpinned before another is pinned
  void* const block = arenas.Take(PinnedArenas::kArenaBytes);
  EXPECT_EQ(memory.pinned, 3);
  void* const small = arenas.Take(PinnedArenas::kLeastBlock);
  EXPECT_EQ(memory.pinned, 3);
  arenas.Drop();
  EXPECT_EQ(memory.arenas.size(), 2u);
  arenas.Give(block);
  arenas.Give(small);
  arenas.Forget();
  EXPECT_TRUE(memory.arenas.empty());
}

TEST(PinnedArenas, BlocksNeverOverlap) {
  std::mt19937_64 random = testing::TestRandom();
  Memory memory;
  PinnedArenas arenas(memory.Source());
  arenas.Keep();
  struct Block {
    std::byte* data;
    size_t bytes;
  };
  std::vector<Block> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const size_t bytes = PinnedArenas::kArenaBytes >> random() % 7;
      auto* data = static_cast<std::byte*>(arenas.Take(bytes));
      ASSERT_NE(data, nullptr);
      for (const Block& other : live) {
        ASSERT_TRUE(data + bytes <= other.data || other.data + other.bytes <= data);
      }
      live.push_back({data, bytes});
    } else {
      const size_t at = random() % live.size();
      ASSERT_TRUE(arenas.Give(live[at].data));
      live[at] = live.back();
      live.pop_back();
    }
    if (live.size() > 60) {
      for (const Block& block : live) arenas.Give(block.data);
      live.clear();
    }
  }
  for (const Block& block : live) arenas.Give(block.data);
  arenas.Forget();
  EXPECT_TRUE(memory.arenas.empty());
}

}  // namespace
}  // namespace litecache
