// Which sequences pass through a layer together, where their rows are staged, and which tokens are
// recomputed together: invariants on random steps.

#include "kv/offload/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kv/offload/pieces.h"
#include "test_seed.h"

namespace litecache::kv::offload {
namespace {

std::vector<Part> RandomParts(std::mt19937_64& random) {
  const auto count = 1 + static_cast<int64_t>(random() % 40);
  const auto decoding = static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1));
  std::vector<Part> parts;
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool decode = i < decoding;
    const auto rows = decode ? 1 : 1 + static_cast<int64_t>(random() % 50);
    const auto past = static_cast<int64_t>(random() % 3000);
    const int64_t split = decode ? static_cast<int64_t>(random() % (past + 1)) : 0;
    parts.push_back({{100 + i, row, rows, past, decode}, random() % 3 == 0 ? 0 : split});
    row += rows;
  }
  return parts;
}

TEST(GroupsTest, EveryPartOnceWithALaneOfItsOwn) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 300; ++round) {
    const std::vector<Part> before = RandomParts(random);
    std::vector<Part> parts = before;
    const auto wanted = 1 + static_cast<int64_t>(random() % 9);
    const std::vector<Group> groups = MakeGroups(&parts, wanted);
    ASSERT_EQ(static_cast<int64_t>(groups.size()),
              std::min(wanted, static_cast<int64_t>(parts.size())));
    ASSERT_EQ(parts.size(), before.size());
    std::set<SequenceId> ids;
    const auto decoding =
        std::ranges::count_if(parts, [](const Part& part) { return part.sequence.decode; });
    std::vector<int64_t> lanes;
    int64_t together = 0, largest = 0, next_decode = 0, next_prefill = decoding;
    for (const Group& group : groups) {
      EXPECT_EQ(group.decode_begin, next_decode);
      EXPECT_EQ(group.prefill_begin, next_prefill);
      next_decode = group.decode_end;
      next_prefill = group.prefill_end;
      std::set<int64_t> own;
      group.ForEach([&](int64_t i) {
        const Part& part = parts[static_cast<size_t>(i)];
        EXPECT_TRUE(ids.insert(part.sequence.id).second);
        EXPECT_TRUE(own.insert(part.lane).second) << "two parts of a group in one lane";
        EXPECT_EQ(part.sequence.decode, i < decoding);
        lanes.resize(std::max(lanes.size(), static_cast<size_t>(part.lane) + 1));
        int64_t& lane = lanes[static_cast<size_t>(part.lane)];
        lane = std::max(lane, part.n());
        together += part.n();
        largest = std::max(largest, part.n());
      });
      EXPECT_FALSE(own.empty());
    }
    EXPECT_EQ(next_decode, decoding);
    EXPECT_EQ(ids.size(), parts.size());
    int64_t staged = 0;
    for (const int64_t lane : lanes) staged += lane;
    EXPECT_LE(staged, together / static_cast<int64_t>(groups.size()) + largest);
    if (groups.size() == 1) {
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].sequence.id, before[i].sequence.id) << "one group keeps the order";
      }
    }
  }
}

TEST(GroupsTest, PiecesCoverWhatIsRecomputed) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 300; ++round) {
    std::vector<Part> parts = RandomParts(random);
    const std::vector<Group> groups = MakeGroups(&parts, 1 + static_cast<int64_t>(random() % 5));
    for (Part& part : parts) {
      part.sequence.past = part.split + static_cast<int64_t>(random() % 50);
      part.tail = static_cast<int64_t>(random() % 3) * (part.sequence.past - part.split) / 2;
    }
    const auto unit = 1 + static_cast<int64_t>(random() % 20);
    const auto rows = unit * (1 + static_cast<int64_t>(random() % 25));
    const Pieces pieces = MakePieces(parts, groups, rows, unit);
    ASSERT_EQ(pieces.first_piece.size(), groups.size() + 1);
    std::vector<int64_t> covered(parts.size());
    int64_t position = 0, segment = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::set<int64_t> own;
      groups[g].ForEach([&](int64_t i) { own.insert(i); });
      for (int64_t p = pieces.first_piece[g]; p < pieces.first_piece[g + 1]; ++p) {
        const Piece& piece = pieces.pieces[static_cast<size_t>(p)];
        EXPECT_EQ(piece.begin, segment);
        EXPECT_EQ(piece.first_position, position);
        int64_t row = 0;
        for (; segment < piece.end; ++segment) {
          const Segment& s = pieces.segments[static_cast<size_t>(segment)];
          EXPECT_TRUE(own.contains(s.part)) << "another group's";
          EXPECT_EQ(s.first_row, row);
          const Part& part = parts[static_cast<size_t>(s.part)];
          const int64_t before = covered[static_cast<size_t>(s.part)];
          EXPECT_EQ(s.begin,
                    before < part.split ? before : part.arrived_end() + before - part.split);
          if (before < part.split) {
            EXPECT_LE(s.begin + s.count, part.split);
          }
          EXPECT_GT(s.count, 0);
          covered[static_cast<size_t>(s.part)] += s.count;
          row += s.count;
        }
        EXPECT_EQ(row, piece.rows);
        EXPECT_LE(piece.places, rows);
        EXPECT_GE(piece.places, piece.rows);
        EXPECT_LT(piece.places, piece.rows + unit);
        EXPECT_EQ(piece.places % unit, 0);
        EXPECT_LE(piece.rows, rows);
        if (p + 1 < pieces.first_piece[g + 1]) {
          EXPECT_EQ(piece.rows, rows);
        }
        position += piece.places;
      }
    }
    EXPECT_EQ(segment, static_cast<int64_t>(pieces.segments.size()));
    EXPECT_EQ(position, pieces.total);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(covered[i], parts[i].split + parts[i].tail);
  }
}

}  // namespace
}  // namespace litecache::kv::offload
