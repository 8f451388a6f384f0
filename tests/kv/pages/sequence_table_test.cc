#include "kv/pages/sequence_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "kv/host_device.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

// 16 tokens per page (2 * 512 * 4 bytes per row), 2 layers x 3 KV heads.
constexpr Layout kLayout{2, 6, 3, 512, DType::kF32};
constexpr int64_t kLists = 6;

// The table and a straightforward model: a vector of row stamps for every sequence. A row's stamp
// is written to all its (layer, head) pages, so that every page is checked.
class Twin {
 public:
  Twin(Device& device, int64_t blocks)
      : pages_(kLayout),
        pool_(device, pages_.page_bytes, static_cast<uint64_t>(blocks) * pages_.block_bytes()),
        table_(pages_.Table(), pool_) {}

  SequenceId Create() {
    const SequenceId id = table_.Create();
    EXPECT_TRUE(model_.emplace(id, std::vector<uint64_t>()).second) << "an id was reused";
    return id;
  }
  SequenceId Fork(SequenceId parent) {
    const int64_t used = pool_.used();
    const SequenceId id = table_.Fork(parent);
    EXPECT_EQ(pool_.used(), used) << "a fork takes no page";
    EXPECT_TRUE(model_.emplace(id, model_.at(parent)).second);
    return id;
  }
  void Release(SequenceId id) {
    table_.Release(id);
    model_.erase(id);
  }
  // Returns whether there was enough memory.
  bool Append(const std::vector<SequenceTable::Growth>& growths, bool commit = true) {
    const int64_t used = pool_.used();
    try {
      table_.Grow(growths);
    } catch (const CapacityError&) {
      EXPECT_EQ(pool_.used(), used) << "a refused growth took pages";
      return false;
    }
    for (const auto& [id, rows, from] : growths) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t token = table_.Length(id) + row;
        ++stamp_;
        for (int64_t list = 0; list < kLists; ++list) Write(id, list, token, stamp_ * 8 + list);
        if (commit) model_.at(id).push_back(stamp_);
      }
      if (commit) table_.Commit(id, rows);
    }
    return true;
  }
  void Check() const {
    ASSERT_EQ(table_.size(), static_cast<int64_t>(model_.size()));
    for (const auto& [id, rows] : model_) {
      ASSERT_EQ(table_.Length(id), static_cast<int64_t>(rows.size()));
      for (size_t token = 0; token < rows.size(); ++token) {
        for (int64_t list = 0; list < kLists; ++list) {
          ASSERT_EQ(Read(id, list, static_cast<int64_t>(token)),
                    rows[token] * 8 + static_cast<uint64_t>(list))
              << "sequence " << id << " token " << token << " list " << list;
        }
      }
    }
  }

  const PagePool& pool() const { return pool_; }
  const PageLayout& pages() const { return pages_; }
  SequenceTable& table() { return table_; }
  const std::map<SequenceId, std::vector<uint64_t>>& model() const { return model_; }

 private:
  std::byte* Row(SequenceId id, int64_t list, int64_t token) const {
    return table_.Lists(id)[list][token / 16] + (token % 16) * 4096;
  }
  void Write(SequenceId id, int64_t list, int64_t token, uint64_t value) {
    std::memcpy(Row(id, list, token), &value, sizeof(value));         // K's first element
    std::memcpy(Row(id, list, token) + 4088, &value, sizeof(value));  // V's last
  }
  uint64_t Read(SequenceId id, int64_t list, int64_t token) const {
    uint64_t first, last;
    std::memcpy(&first, Row(id, list, token), sizeof(first));
    std::memcpy(&last, Row(id, list, token) + 4088, sizeof(last));
    return first == last ? first : ~uint64_t{0};
  }

  PageLayout pages_;
  PagePool pool_;
  SequenceTable table_;
  std::map<SequenceId, std::vector<uint64_t>> model_;
  uint64_t stamp_ = 0;
};

TEST(SequenceTable, ForkSharesAndCopiesOnlyThePageWrittenTo) {
  HostDevice device;
  Twin twin(device, 100);
  const SequenceId parent = twin.Create();
  ASSERT_TRUE(twin.Append({{parent, 40}}));  // two full blocks and 8 rows
  EXPECT_EQ(twin.pool().used(), 3 * kLists);
  const SequenceId child = twin.Fork(parent);
  const SequenceId other = twin.Fork(parent);
  EXPECT_EQ(twin.pool().used(), 3 * kLists);
  ASSERT_TRUE(twin.Append({{child, 1}}));
  EXPECT_EQ(twin.pool().used(), 4 * kLists);
  // One copies, then the other is the only owner.
  ASSERT_TRUE(twin.Append({{parent, 1}, {other, 1}}));
  EXPECT_EQ(twin.pool().used(), 5 * kLists);
  twin.Check();
  twin.Release(parent);
  EXPECT_EQ(twin.pool().used(), 4 * kLists);
  twin.Check();
  twin.Release(child);
  twin.Release(other);
  EXPECT_EQ(twin.pool().used(), 0);
}

TEST(SequenceTable, RefusedGrowthChangesNothingForAnySequence) {
  HostDevice device;
  Twin twin(device, 4);
  const SequenceId a = twin.Create();
  const SequenceId b = twin.Create();
  ASSERT_TRUE(twin.Append({{a, 16}, {b, 16}}));
  EXPECT_FALSE(twin.Append({{a, 17}, {b, 16}}));  // three blocks, two free
  EXPECT_EQ(twin.pool().used(), 2 * kLists);
  twin.Check();
  ASSERT_TRUE(twin.Append({{a, 16}, {b, 16}}));
  twin.Check();
  // A copy without a free page is refused like growth; when its sibling is gone, it needs none.
  twin.Release(b);
  ASSERT_TRUE(twin.Append({{a, 8}}));
  const SequenceId c = twin.Create();
  ASSERT_TRUE(twin.Append({{c, 1}}));
  const SequenceId fork = twin.Fork(a);
  EXPECT_FALSE(twin.Append({{fork, 1}}));
  EXPECT_FALSE(twin.Append({{a, 1}}));
  twin.Check();
  twin.Release(a);
  ASSERT_TRUE(twin.Append({{fork, 1}}));
  twin.Check();
}

TEST(SequenceTable, AStepThatIsNotCommittedIsWrittenAgain) {
  HostDevice device;
  Twin twin(device, 10);
  const SequenceId a = twin.Create();
  ASSERT_TRUE(twin.Append({{a, 10}}));
  ASSERT_TRUE(twin.Append({{a, 30}}, /*commit=*/false));
  const int64_t used = twin.pool().used();
  const SequenceId fork = twin.Fork(a);  // shares the committed rows' block only
  ASSERT_TRUE(twin.Append({{fork, 5}}));
  EXPECT_EQ(twin.pool().used(), used + kLists);
  ASSERT_TRUE(twin.Append({{a, 30}}));
  EXPECT_EQ(twin.pool().used(), used + kLists);
  twin.Check();
}

TEST(SequenceTable, UnknownSequencesAreErrors) {
  HostDevice device;
  Twin twin(device, 10);
  const SequenceId a = twin.Create();
  twin.Release(a);
  EXPECT_THROW(twin.table().Length(a), InvalidArgument);
  EXPECT_THROW(twin.table().Release(a), InvalidArgument);
  EXPECT_THROW(twin.table().Fork(a), InvalidArgument);
  EXPECT_THROW(twin.table().Length(12345), InvalidArgument);
}

TEST(SequenceTable, RandomLifeMatchesAPlainModelAndLeaksNothing) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    HostDevice device;
    Twin twin(device, 4 + static_cast<int64_t>(random() % 60));
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      std::vector<SequenceId> ids;
      for (const auto& [id, rows] : twin.model()) ids.push_back(id);
      const auto any = [&] { return ids[random() % ids.size()]; };
      switch (random() % 8) {
        case 0:
          twin.Create();
          break;
        case 1:
        case 2:
          if (!ids.empty()) twin.Fork(any());
          break;
        case 3:
          if (!ids.empty()) twin.Release(any());
          break;
        default: {
          std::vector<SequenceTable::Growth> growths;
          std::shuffle(ids.begin(), ids.end(), random);
          ids.resize(std::min<size_t>(ids.size(), 1 + random() % 5));
          for (SequenceId id : ids) {
            growths.push_back(
                {id, random() % 3 == 0 ? 1 + static_cast<int64_t>(random() % 50) : 1});
          }
          if (!growths.empty() && !twin.Append(growths, random() % 10 != 0)) ++refused;
        }
      }
      if (i % 20 == 0) twin.Check();
      if (HasFatalFailure()) return;
    }
    twin.Check();
    // The memory in use never exceeds what the sequences would take without sharing.
    uint64_t alone = 0;
    for (const auto& [id, rows] : twin.model()) {
      alone += twin.pages().BytesFor(static_cast<int64_t>(rows.size()) + 50);
    }
    EXPECT_LE(static_cast<uint64_t>(twin.pool().used()) * twin.pages().page_bytes, alone);
    while (!twin.model().empty()) twin.Release(twin.model().begin()->first);
    EXPECT_EQ(twin.pool().used(), 0);
  }
}

}  // namespace
}  // namespace litecache::kv
