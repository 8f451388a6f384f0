// The slots of a random layer of policy litecache: their rows after an update, which must equal the
// store's rows.
#pragma once

#include <unordered_map>

#include "ops/litecache_testing_cuda.h"

namespace litecache::ops::cuda {

class LiteCacheSlotsTest : public LiteCacheTest {
 protected:
  LiteCacheCase RandomCase(Random& random, int round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 4);
    c.group = 2;
    c.head_dim = round % 3 == 0 ? 64 : round % 3 == 1 ? 128 : 80;
    c.sink = Uniform(random, 0, 5);
    c.recent = Uniform(random, 1, 40);
    c.carry = Uniform(random, 0, 30);
    c.slots_factor = round % 2 == 0 ? 1 : 2;
    c.by_need = round % 4 == 0;
    if (round % 4 == 3) {
      c.tokens = Uniform(random, 1, 200);
    } else {
      c.share = 0.05 * (1 + round % 4);
    }
    const RowEncoding stores[] = {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8,
                                  RowEncoding::kInt4};
    c.store = stores[round % 4];
    if (round % 5 == 4) c.encoding = RowEncoding::kF32;
    if (c.store == RowEncoding::kBF16) c.store = c.encoding;
    for (int i = Uniform(random, 1, 6); i > 0; --i) {
      c.past.push_back(Uniform(random, 0, 2) == 0 ? Uniform(random, 1, 120)
                                                  : testing::Tokens(Uniform(random, 400, 3000)));
    }
    if (c.kv_heads > 1) c.resident = {1};
    c.codes = Uniform(random, 0, 2) > 0;
    return c;
  }

  struct Slots {
    HeadState state;
    std::vector<int32_t> positions, updates;  // [used]
  };
  // Reads mirrors, which must be up to date.
  Slots Read(int32_t s, int32_t list) {
    Slots slots{.state = State(s, list), .positions = {}, .updates = {}};
    for (int32_t i = 0; i < slots.state.used; ++i) {
      slots.positions.push_back(HostPosition(s, list, shape_.cache_begin + i));
      slots.updates.push_back(HostUpdate(s, list, shape_.cache_begin + i));
    }
    return slots;
  }

  void ExpectRow(const std::string& where, int32_t s, int32_t list, int32_t token, int32_t slot) {
    std::vector<std::byte> want(layer_.slots.format.row_bytes());
    ConvertRow(WholeFormat(layer_.store), WholeRow(s, layer_.store, list, token).data(),
               layer_.slots.format, want.data());
    const std::byte* got = HostRow(s, layer_.slots, list, slot);
    const auto a = std::mismatch(want.begin(), want.end(), got).first;
    ASSERT_EQ(a, want.end()) << where << ": row of token " << token << " in slot " << slot
                             << ", byte " << a - want.begin();
  }

  // A fixed slot's row, from which the store's codes are made.
  void ExpectStored(const std::string& where, int32_t s, int32_t list, int32_t token,
                    int32_t slot) {
    const RowFormat format = WholeFormat(layer_.store);
    std::vector<std::byte> whole(format.row_bytes()), want(layer_.store.format.row_bytes());
    ConvertRow(layer_.slots.format, HostRow(s, layer_.slots, list, slot), format, whole.data());
    const RowScales scales = SplitScales(format, whole.data(), want.data());
    EXPECT_EQ(std::memcmp(&scales, &HostScales(s, list, token), sizeof(scales)), 0)
        << where << ": scales of token " << token << ", made of slot " << slot;
    const auto a =
        std::mismatch(want.begin(), want.end(), HostRow(s, layer_.store, list, token)).first;
    ASSERT_EQ(a, want.end()) << where << ": codes of token " << token << ", made of slot " << slot
                             << ", byte " << a - want.begin();
  }

  // Attended rows: those selected by the last update.
  std::set<int32_t> Attended(const std::string& where, int32_t s, int32_t list) {
    const Slots slots = Read(s, list);
    std::set<int32_t> attended;
    for (size_t i = 0; i < slots.positions.size(); ++i) {
      if (static_cast<uint32_t>(slots.updates[i]) != slots.state.update) continue;
      EXPECT_TRUE(attended.insert(slots.positions[i]).second)
          << where << ": token " << slots.positions[i] << " has two slots";
      ExpectCached(where, s, list, slots.positions[i],
                   shape_.cache_begin + static_cast<int32_t>(i));
    }
    return attended;
  }

  // Checks the result of an update on `before`.
  void CheckUpdate(const std::string& where, int32_t s, int32_t h, bool delta, int32_t n,
                   const Slots& before, const std::vector<int32_t>& selected) {
    const int32_t list = ListOf(h);
    const Slots after = Read(s, list);
    const uint32_t now = before.state.update + 1;
    ASSERT_EQ(after.state.update, now) << where;
    ASSERT_EQ(after.state.pending, 0) << where;
    ASSERT_EQ(after.state.window_begin, shape_.windows.RecentBegin(n)) << where;
    const std::set<int32_t> wanted(selected.begin(), selected.end());
    const std::set<int32_t> had(before.positions.begin(), before.positions.end());
    std::vector<int32_t> missing;
    for (int32_t p : selected) {
      if (!delta || had.count(p) == 0) missing.push_back(p);
    }
    const auto count = static_cast<int32_t>(missing.size());
    const size_t room = PairOf(s, h) * static_cast<size_t>(shape_.max_rows);
    ASSERT_EQ(Download(layer_.moved_count + PairOf(s, h), 1)[0], count) << where;
    const auto positions = Download(layer_.moved_positions + room, missing.size());
    const auto slots = Download(layer_.moved_slots + room, missing.size());
    ASSERT_EQ(positions, missing) << where << ": rows that travel";
    std::set<int32_t> expected_slots;
    int32_t used = static_cast<int32_t>(selected.size());
    if (!delta) {
      for (int32_t i = 0; i < count; ++i) expected_slots.insert(shape_.cache_begin + i);
    } else {
      const int32_t capacity = shape_.windows.CacheSlots(n);
      const int32_t fresh = std::min(count, capacity - before.state.used);
      used = before.state.used + fresh;
      std::vector<int32_t> victims;
      for (int32_t i = 0; i < before.state.used; ++i) {
        if (wanted.count(before.positions[static_cast<size_t>(i)]) == 0) victims.push_back(i);
      }
      const auto next = std::ranges::lower_bound(victims, before.state.next_victim);
      std::ranges::rotate(victims, next);
      ASSERT_LE(count - fresh, static_cast<int32_t>(victims.size())) << where;
      victims.resize(static_cast<size_t>(count - fresh));
      for (const int32_t victim : victims) expected_slots.insert(shape_.cache_begin + victim);
      if (!victims.empty()) {
        ASSERT_EQ(after.state.next_victim, victims.back() + 1) << where;
      }
      for (int32_t i = 0; i < fresh; ++i) {
        expected_slots.insert(shape_.cache_begin + before.state.used + i);
      }
    }
    ASSERT_EQ(after.state.used, used) << where;
    ASSERT_EQ(std::set<int32_t>(slots.begin(), slots.end()), expected_slots) << where;
    std::unordered_map<int32_t, size_t> moved_to;
    for (size_t i = 0; i < slots.size(); ++i) moved_to[slots[i]] = i;
    for (int32_t i = 0; i < after.state.used; ++i) {
      const auto index = static_cast<size_t>(i);
      const auto moved = moved_to.find(shape_.cache_begin + i);
      if (moved != moved_to.end()) {
        ASSERT_EQ(after.positions[index], positions[moved->second]) << where << ", slot " << i;
        ASSERT_EQ(static_cast<uint32_t>(after.updates[index]), now) << where << ", slot " << i;
        continue;
      }
      ASSERT_EQ(after.positions[index], before.positions[index]) << where << ", slot " << i;
      const bool kept = wanted.count(before.positions[index]) != 0;
      ASSERT_EQ(after.updates[index], kept ? static_cast<int32_t>(now) : before.updates[index])
          << where << ", slot " << i;
    }
    ASSERT_EQ(Attended(where, s, list), wanted) << where;
  }
};

}  // namespace litecache::ops::cuda
