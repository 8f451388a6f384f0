#include "kv/pages/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kv/host_device.h"
#include "kv/layout.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

TEST(Layout, PagesAreAtMost64KiBAndPowersOfTwo) {
  for (int64_t head_dim : {16, 64, 80, 96, 128, 256, 320}) {
    for (DType dtype : {DType::kBF16, DType::kF32}) {
      const Layout layout{3, 8, 2, head_dim, dtype};
      const PageLayout pages(layout);
      const auto row = static_cast<uint64_t>(2 * head_dim) * SizeOf(dtype);
      EXPECT_EQ(pages.page_tokens & (pages.page_tokens - 1), 0);
      EXPECT_GE(pages.page_tokens, 16);
      EXPECT_EQ(pages.page_bytes, row * static_cast<uint64_t>(pages.page_tokens));
      EXPECT_LE(pages.page_bytes, 64u * 1024);
      EXPECT_GT(2 * pages.page_bytes, 64u * 1024);  // the next power of two would exceed it
      EXPECT_EQ(pages.BytesFor(0), 0u);
      EXPECT_EQ(pages.BytesFor(1), 6 * pages.page_bytes);
      EXPECT_EQ(pages.BytesFor(pages.page_tokens), 6 * pages.page_bytes);
      EXPECT_EQ(pages.BytesFor(pages.page_tokens + 1), 12 * pages.page_bytes);
      EXPECT_EQ(pages.TokensIn(pages.BytesFor(5)), pages.page_tokens);
      EXPECT_EQ(pages.TokensIn(pages.BytesFor(5) - 1), 0);
    }
  }
  // Rows too long for 64 KiB still get 16 per page.
  EXPECT_EQ(PageTokens({1, 1, 1, 4096, DType::kF32}), 16);
}

TEST(Layout, RefusesImpossibleShapes) {
  EXPECT_THROW(CheckLayout({0, 8, 2, 64, DType::kBF16}), InvalidArgument);
  EXPECT_THROW(CheckLayout({2, 8, 3, 64, DType::kBF16}), InvalidArgument);
  EXPECT_THROW(CheckLayout({2, 8, 2, -64, DType::kBF16}), InvalidArgument);
  EXPECT_THROW(CheckLayout({2, 8, 2, int64_t{1} << 40, DType::kBF16}), InvalidArgument);
  EXPECT_THROW(CheckLayout({2, 8, 2, 64, DType::kF16}), InvalidArgument);
  EXPECT_NO_THROW(CheckLayout({2, 8, 2, 64, DType::kBF16}));
}

// Pages allocated ahead are later taken without the device, in address order.
TEST(PagePool, PagesAllocatedAheadTakeNoMemoryLater) {
  HostDevice device;
  PagePool pool(device, 65536, 3000 * 65536);
  pool.Reserve(2);
  const PageId first = pool.Take();
  pool.AllocateAhead(1000 * 65536 - 1);
  EXPECT_GE(pool.provided(), 1000);
  EXPECT_LE(pool.provided() * 65536, 1000 * 65536 + static_cast<int64_t>(PagePool::kSlabBytes));
  const size_t live = HostDevice::live();
  pool.AllocateAhead(500 * 65536);  // exists already
  pool.Reserve(999);
  std::set<PageId> pages = {first};
  for (int i = 1; i < 1000; ++i) {
    const PageId page = pool.Take();
    EXPECT_EQ(page, first + static_cast<PageId>(i));
    EXPECT_TRUE(pages.insert(page).second);
    std::memset(pool.data(page), i % 256, 65536);
  }
  EXPECT_EQ(HostDevice::live(), live);
  EXPECT_EQ(pool.used(), 1000);
  pool.AllocateAhead(~uint64_t{0});
  EXPECT_EQ(pool.provided(), 3000) << "the budget";
}

TEST(PagePool, AllocatesAheadWhatTheDeviceHas) {
  HostDevice device(5 * PagePool::kSlabBytes + 1000);
  PagePool pool(device, 65536, 3000 * 65536);
  pool.AllocateAhead(3000 * 65536);
  const auto there = static_cast<int64_t>(5 * PagePool::kSlabBytes / 65536);
  EXPECT_EQ(pool.provided(), there);
  EXPECT_THROW(pool.Reserve(there + 1), CapacityError);
  pool.Reserve(there);
  std::set<PageId> pages;
  for (int64_t i = 0; i < there; ++i) EXPECT_TRUE(pages.insert(pool.Take()).second);
}

TEST(PagePool, GrowsWithUseUpToTheBudgetAndNotBeyond) {
  HostDevice device;
  {
    // 100 pages and a half: the half is never used.
    PagePool pool(device, 65536, 100 * 65536 + 32768);
    EXPECT_EQ(pool.capacity(), 100);
    EXPECT_EQ(HostDevice::live(), 0u);
    pool.Reserve(1);
    EXPECT_LE(HostDevice::live(), 100u * 65536);
    pool.Reserve(100);
    std::set<std::byte*> pages;
    std::vector<PageId> ids;
    for (int i = 0; i < 100; ++i) {
      ids.push_back(pool.Take());
      EXPECT_TRUE(pages.insert(pool.data(ids.back())).second);
      std::memset(pool.data(ids.back()), i, 65536);
    }
    EXPECT_LE(HostDevice::live(), 100u * 65536);
    for (int i = 0; i < 100; ++i) {  // no two pages overlap
      EXPECT_EQ(pool.data(ids[static_cast<size_t>(i)])[0], std::byte(i));
      EXPECT_EQ(pool.data(ids[static_cast<size_t>(i)])[65535], std::byte(i));
    }
    EXPECT_EQ(pool.available(), 0);
    EXPECT_THROW(pool.Reserve(1), CapacityError);
    pool.DropReference(ids[17]);
    pool.Reserve(1);
    EXPECT_THROW(pool.Reserve(2), CapacityError);
    EXPECT_EQ(pool.Take(), ids[17]);
  }
  EXPECT_EQ(HostDevice::live(), 0u);
}

TEST(PagePool, ErrorNamesTheNumbers) {
  HostDevice device;
  PagePool pool(device, 65536, 10 * 65536);
  pool.Reserve(4);
  for (int i = 0; i < 4; ++i) pool.Take();
  try {
    pool.Reserve(7);
    FAIL() << "no error";
  } catch (const CapacityError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("448 KiB more needed"), std::string::npos) << message;
    EXPECT_NE(message.find("256 KiB of the budget of 640 KiB"), std::string::npos) << message;
    EXPECT_NE(message.find("6 free"), std::string::npos) << message;
  }
}

TEST(PagePool, DeviceOutOfMemoryChangesNothing) {
  HostDevice device(40u << 20);  // two slabs of 16 MiB
  PagePool pool(device, 65536, 64u << 20);
  EXPECT_THROW(pool.Reserve(1024), CapacityError);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.available(), 1024);
  pool.Reserve(512);  // existing pages can still be used
  for (int i = 0; i < 512; ++i) pool.Take();
  EXPECT_THROW(pool.Reserve(1), CapacityError);
  EXPECT_EQ(pool.used(), 512);
}

TEST(PagePool, ReturnsSlabsWithoutUsedPages) {
  HostDevice device;
  PagePool pool(device, 65536, 1000 * 65536);  // slabs of 256 pages; the last one has 232
  pool.Reserve(1000);
  std::vector<PageId> pages;
  for (int i = 0; i < 1000; ++i) {
    pages.push_back(pool.Take());
    std::memset(pool.data(pages.back()), i % 251, 65536);
  }
  for (int i = 0; i < 1000; ++i) {
    if (i != 300) pool.DropReference(pages[static_cast<size_t>(i)]);
  }
  pool.ReleaseFree();
  EXPECT_EQ(HostDevice::live(), PagePool::kSlabBytes) << "the slab of page 300 is left";
  EXPECT_EQ(pool.provided(), 256);
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.available(), 999);
  EXPECT_EQ(pool.data(pages[300])[65535], std::byte(300 % 251));
  // All pages can be taken again, each once, and none is page 300.
  pool.Reserve(999);
  std::set<PageId> again = {pages[300]};
  for (int i = 0; i < 999; ++i) {
    again.insert(pool.Take());
    std::memset(pool.data(*again.rbegin()), 7, 1);
  }
  EXPECT_EQ(again.size(), 1000u);
  EXPECT_EQ(*again.rbegin(), 999u);
  EXPECT_EQ(HostDevice::live(), 1000u * 65536);
  EXPECT_THROW(pool.Reserve(1), CapacityError);
}

TEST(PagePool, ALimitHoldsUntilItIsRaised) {
  HostDevice device;
  PagePool pool(device, 65536, 100 * 65536);
  pool.Reserve(10);
  for (int i = 0; i < 10; ++i) pool.Take();
  pool.Limit(12 * 65536 + 1000);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_THROW(pool.Reserve(3), CapacityError);
  pool.Reserve(2);
  pool.Limit(5 * 65536);  // less than is in use
  EXPECT_EQ(pool.available(), 0);
  pool.Reserve(0);
  EXPECT_THROW(pool.Reserve(1), CapacityError);
  pool.Limit(~uint64_t{0});
  EXPECT_EQ(pool.available(), 90) << "the constructor's budget";
  EXPECT_EQ(pool.capacity(), 100);
}

TEST(PagePool, RandomReferencesMatchAPlainModel) {
  std::mt19937_64 random = testing::TestRandom();
  HostDevice device;
  PagePool pool(device, 4096, 300 * 4096, "KV cache", 16 * 4096);
  std::vector<std::pair<PageId, int>> model;
  for (int i = 0; i < 20000; ++i) {
    const auto action = random() % 3;
    if (action == 0 && pool.available() > 0) {
      pool.Reserve(1);
      model.emplace_back(pool.Take(), 1);
    } else if (action == 1 && !model.empty()) {
      auto& [page, references] = model[random() % model.size()];
      pool.AddReference(page);
      ++references;
    } else if (!model.empty()) {
      const size_t at = random() % model.size();
      pool.DropReference(model[at].first);
      if (--model[at].second == 0) model.erase(model.begin() + static_cast<int64_t>(at));
    }
    if (random() % 100 == 0) pool.ReleaseFree();
    ASSERT_EQ(pool.used(), static_cast<int64_t>(model.size()));
    ASSERT_EQ(HostDevice::live(), static_cast<size_t>(pool.provided()) * 4096);
  }
  for (const auto& [page, references] : model) ASSERT_EQ(pool.references(page), references);
}

}  // namespace
}  // namespace litecache::kv
