#include "ops/rows/collect_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "test_seed.h"

namespace litecache::ops {
namespace {

TEST(CollectRows, EveryByteOfRowsOfAnySize) {
  std::mt19937_64 random = testing::TestRandom(41);
  std::vector<std::byte> memory(1 << 16);
  for (std::byte& b : memory) b = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    const size_t row_bytes = round % 3 == 0 ? 64 * (1 + random() % 16) : 1 + random() % 1100;
    const auto count = static_cast<int64_t>(random() % 40);
    const size_t offset = round % 2 == 0 ? 0 : random() % 64;
    std::vector<uint64_t> sources;
    for (int64_t i = 0; i < count; ++i) {
      sources.push_back(
          reinterpret_cast<uint64_t>(memory.data() + random() % (memory.size() - row_bytes)));
    }
    constexpr size_t kGuard = 64;
    const std::byte poison{0xcd};
    const size_t bytes = static_cast<size_t>(count) * row_bytes;
    std::vector<std::byte> space(bytes + offset + 2 * kGuard + 64, poison);
    auto* aligned = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(space.data()) + kGuard + 63) / 64 * 64 + offset);
    for (const CollectStores stores : {CollectStores::kCached, CollectStores::kStreaming}) {
      CollectRows(sources.data(), count, row_bytes, aligned, stores);
      FlushStores();
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::memcmp(aligned + static_cast<size_t>(i) * row_bytes,
                              reinterpret_cast<const std::byte*>(sources[static_cast<size_t>(i)]),
                              row_bytes),
                  0)
            << "row " << i << " of " << count << ", " << row_bytes << " bytes";
      }
      ASSERT_EQ(aligned[bytes], poison);
      ASSERT_EQ(aligned[-1], poison);
    }
  }
}

}  // namespace
}  // namespace litecache::ops
