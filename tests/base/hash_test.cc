#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <unordered_set>

namespace litecache {
namespace {

TEST(Hash, OfTextNeverChanges) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar"));
}

// Addresses and sizes like those in the key of a recording: they differ in few bits.
TEST(Hash, OfNumbersTellsNeighboursApart) {
  std::unordered_set<uint64_t> hashes;
  size_t count = 0;
  for (uint64_t a = 0; a < 40; ++a) {
    for (uint64_t b = 0; b < 40; ++b) {
      for (uint64_t size = 1024; size < uint64_t{1} << 20; size *= 2, ++count) {
        hashes.insert(HashOf({0x7f0000000000u + (a << 9), 0x7f0000000000u + (b << 9), size}));
      }
    }
  }
  EXPECT_EQ(hashes.size(), count);
  EXPECT_NE(HashOf({1, 2}), HashOf({2, 1}));
  EXPECT_NE(HashOf({0}), HashOf({0, 0}));
}

}  // namespace
}  // namespace litecache
