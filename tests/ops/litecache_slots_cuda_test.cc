// Slots: the rows in them after an update, and that they equal the store's rows.
#include <unordered_map>

#include "ops/litecache_testing_cuda.h"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

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

// Many steps of random selections, each followed by the row transfer; some heads are not updated in
// each step and must stay unchanged, byte for byte.
TEST_F(LiteCacheSlotsTest, UpdatesAndPulls) {
  Random random = testing::TestRandom(21);
  for (int round = 0; round < testing::Rounds(10); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.growth = 12;
    Build(random, c);
    const bool delta = round % 5 != 2;
    void* scratch = Poisoned<std::byte>(
        std::max<size_t>(256, UpdateSlotsScratchBytes(shape_, step_.capacity, step_.max_context)));
    unsigned long long rows_moved = 0, rows_selected = 0;
    for (int step = 0; step < testing::Rounds(10); ++step) {
      std::vector<int32_t> refresh(PairOf(sequences() + 1, 0), 0);
      std::vector<std::vector<int32_t>> selections(refresh.size());
      std::vector<Slots> before(refresh.size());
      std::vector<std::vector<std::byte>> old;
      for (int32_t s = 0; s < sequences(); ++s) {
        const int32_t n = views_[static_cast<size_t>(s)].past + 1;
        const int32_t candidates = shape_.windows.Candidates(n);
        Pull(PagesOf(s, kSlots));
        old.push_back(PagesOf(s, kSlots).mirror);
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          const size_t pair = PairOf(s, h);
          refresh[pair] = Uniform(random, 0, 3) > 0;
          if (!IsOffloaded(h)) continue;
          before[pair] = Read(s, ListOf(h));
          if (refresh[pair] == 0) continue;
          // Close to the last selection, so that rows recur.
          std::vector<int32_t> all(static_cast<size_t>(candidates));
          std::iota(all.begin(), all.end(), shape_.windows.SinkRows(n));
          std::shuffle(all.begin(), all.end(), random);
          std::set<int32_t> cached(before[pair].positions.begin(), before[pair].positions.end());
          std::stable_partition(all.begin(), all.end(), [&](int32_t p) {
            return cached.count(p) != 0 && Uniform(random, 0, 9) > 1;
          });
          const int32_t most = std::min(shape_.windows.Rows(n), candidates);
          const int32_t count = Uniform(random, 0, 3) == 0 ? Uniform(random, 0, most) : most;
          all.resize(static_cast<size_t>(count));
          std::sort(all.begin(), all.end());
          selections[pair] = all;
          gpu_->Copy(layer_.selected_count + pair, &count, 4);
          if (count > 0) {
            gpu_->Copy(layer_.selected + pair * static_cast<size_t>(shape_.max_rows), all.data(),
                       all.size() * 4);
          }
          rows_selected += static_cast<unsigned long long>(count);
        }
      }
      gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
      const std::vector<int32_t> none(refresh.size(), 0);
      gpu_->Copy(layer_.moved_count, none.data(), none.size() * 4);
      UpdateSlots(*stream_, step_, shape_, layer_, delta, false, scratch);
      PullRows(*stream_, step_, shape_, layer_, 1 + step % 8);
      for (int32_t s = 0; s < sequences(); ++s) {
        Pull(PagesOf(s, kSlots));
        const int32_t n = views_[static_cast<size_t>(s)].past + 1;
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          if (!IsOffloaded(h)) continue;
          const std::string where = c.Name() + ", store " + std::string(Name(c.store)) +
                                    ", delta " + std::to_string(delta) + ", step " +
                                    std::to_string(step) + ", sequence " + std::to_string(s) +
                                    ", head " + std::to_string(h);
          const size_t pair = PairOf(s, h);
          if (refresh[pair] == 1) {
            CheckUpdate(where, s, h, delta, n, before[pair], selections[pair]);
            if (HasFatalFailure()) return;
            rows_moved +=
                static_cast<unsigned long long>(Download(layer_.moved_count + pair, 1)[0]);
            continue;
          }
          // A head without an update.
          const HeadState state = State(s, ListOf(h));
          EXPECT_EQ(std::memcmp(&state, &before[pair].state, sizeof(state)), 0) << where;
          TestPages& pages = PagesOf(s, kSlots);
          for (int64_t b = 0; b < pages.blocks; ++b) {
            const std::byte* now = pages.Host(ListOf(h), b);
            ASSERT_EQ(
                std::memcmp(now, old[static_cast<size_t>(s)].data() + (now - pages.mirror.data()),
                            pages.page_bytes),
                0)
                << where << ", page " << b;
          }
        }
        // Rows outside the cached slots also stay unchanged.
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          if (!IsOffloaded(h)) continue;
          for (int32_t slot = 0; slot < shape_.cache_begin; ++slot) {
            const std::byte* now = HostRow(s, layer_.slots, ListOf(h), slot);
            ASSERT_EQ(std::memcmp(now,
                                  old[static_cast<size_t>(s)].data() +
                                      (now - PagesOf(s, kSlots).mirror.data()),
                                  layer_.slots.format.row_bytes()),
                      0)
                << c.Name() << ", fixed slot " << slot;
          }
        }
        ++views_[static_cast<size_t>(s)].past;
      }
      PushViews();
    }
    unsigned long long selected = 0, moved = 0;
    for (const DeviceHeadCounters& counter : Download(counters_, static_cast<size_t>(c.kv_heads))) {
      selected += counter.rows_selected;
      moved += counter.rows_moved;
    }
    EXPECT_EQ(selected, rows_selected) << c.Name();
    EXPECT_EQ(moved, rows_moved) << c.Name();
  }
}

// Bitmaps with many parts, and lists with many blocks.
TEST_F(LiteCacheSlotsTest, LongContexts) {
  Random random = testing::TestRandom(23);
  for (const double slots_factor : {1.0, 1.3}) {
    LiteCacheCase c;
    c.kv_heads = 2;
    c.group = 1;
    c.head_dim = 4;
    c.share = 0.1;
    c.slots_factor = slots_factor;
    c.past = {slots_factor == 1 ? 990001 : 200003, Uniform(random, 20000, 70000)};
    Build(random, c);
    void* scratch =
        Poisoned<std::byte>(UpdateSlotsScratchBytes(shape_, step_.capacity, step_.max_context));
    const std::vector<int32_t> refresh(PairOf(sequences() + 1, 0), 1);
    gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<int32_t>> selections(refresh.size());
      std::vector<Slots> before(refresh.size());
      for (int32_t s = 0; s < sequences(); ++s) {
        const int32_t n = views_[static_cast<size_t>(s)].past + 1;
        const int32_t begin = shape_.windows.SinkRows(n), candidates = shape_.windows.Candidates(n);
        const int32_t most = shape_.windows.Rows(n);
        Pull(PagesOf(s, kSlots));
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          const size_t pair = PairOf(s, h);
          before[pair] = Read(s, ListOf(h));
          // A few of the cached rows, and others from everywhere or from one place, or fewer rows
          // than slots.
          std::vector<uint8_t> taken(static_cast<size_t>(candidates), 0);
          const int32_t count = step == 4 ? most - Uniform(random, 1, most / 2) : most;
          int32_t left = count;
          for (const int32_t position : before[pair].positions) {
            if (left > 0 && Uniform(random, 0, 9) < 7) {
              taken[static_cast<size_t>(position - begin)] = 1;
              --left;
            }
          }
          int32_t next = Uniform(random, 0, candidates - 1);
          for (; left > 0; --left) {
            while (taken[static_cast<size_t>(next)] != 0) {
              next = step % 3 == 1 ? (next + 1) % candidates : Uniform(random, 0, candidates - 1);
            }
            taken[static_cast<size_t>(next)] = 1;
          }
          for (int32_t i = 0; i < candidates; ++i) {
            if (taken[static_cast<size_t>(i)] != 0) selections[pair].push_back(begin + i);
          }
          ASSERT_EQ(static_cast<int32_t>(selections[pair].size()), count);
          gpu_->Copy(layer_.selected_count + pair, &count, 4);
          gpu_->Copy(layer_.selected + pair * static_cast<size_t>(shape_.max_rows),
                     selections[pair].data(), selections[pair].size() * 4);
        }
      }
      UpdateSlots(*stream_, step_, shape_, layer_, true, false, scratch);
      PullRows(*stream_, step_, shape_, layer_, 48);
      for (int32_t s = 0; s < sequences(); ++s) {
        Pull(PagesOf(s, kSlots));
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          CheckUpdate(c.Name() + ", step " + std::to_string(step) + ", sequence " +
                          std::to_string(s) + ", head " + std::to_string(h),
                      s, h, true, views_[static_cast<size_t>(s)].past + 1, before[PairOf(s, h)],
                      selections[PairOf(s, h)]);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows of 8-bit codes for any head_dim, at all alignments relative to memory lines.
TEST_F(LiteCacheSlotsTest, PullsOfQuantizedRows) {
  Random random = testing::TestRandom(24);
  const int32_t head_dims[] = {16, 48, 64, 80, 96, 112, 128, 160, 256, 20, 7};
  for (const int32_t head_dim : head_dims) {
    for (const auto& [store, codes] : {std::pair{RowEncoding::kFp8, false},
                                       {RowEncoding::kInt8, false},
                                       {RowEncoding::kFp8, true},
                                       {RowEncoding::kInt8, true}}) {
      LiteCacheCase c;
      c.codes = codes;
      c.kv_heads = 2;
      c.group = 1;
      c.head_dim = head_dim;
      c.share = 0.3;
      c.store = store;
      c.encoding = !codes && Uniform(random, 0, 3) == 0 ? RowEncoding::kF32 : RowEncoding::kBF16;
      c.past = {Uniform(random, 300, 900)};
      Build(random, c);
      const int32_t n = c.past[0] + 1, count = shape_.windows.Rows(n);
      std::vector<int32_t> all(static_cast<size_t>(shape_.windows.Candidates(n)));
      std::iota(all.begin(), all.end(), shape_.windows.SinkRows(n));
      const std::vector<int32_t> refresh(PairOf(sequences() + 1, 0), 1);
      gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        std::shuffle(all.begin(), all.end(), random);
        std::sort(all.begin(), all.begin() + count);
        gpu_->Copy(layer_.selected_count + h, &count, 4);
        gpu_->Copy(layer_.selected + h * shape_.max_rows, all.data(),
                   static_cast<size_t>(count) * 4);
      }
      void* scratch =
          Poisoned<std::byte>(UpdateSlotsScratchBytes(shape_, step_.capacity, step_.max_context));
      UpdateSlots(*stream_, step_, shape_, layer_, true, false, scratch);
      PullRows(*stream_, step_, shape_, layer_, Uniform(random, 1, 9));
      Pull(PagesOf(0, kSlots));
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        EXPECT_EQ(Attended(c.Name() + ", store " + std::string(Name(store)), 0, ListOf(h)).size(),
                  static_cast<size_t>(count));
      }
    }
  }
}

// The operations of a step as a decode loop runs them: fill, then lookups, selections, updates and
// transfers of a growing sequence; the store has all rows from the beginning.
TEST_F(LiteCacheSlotsTest, ManyDecodeSteps) {
  Random random = testing::TestRandom(22);
  std::normal_distribution<float> normal;
  int hits = 0, misses = 0;  // over all rounds; in some, everything fits
  for (int round = 0; round < testing::Rounds(6); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.growth = 16;
    // One that begins with fewer rows than its sink holds.
    c.sink = std::max(c.sink, 2);
    c.past.push_back(Uniform(random, 1, c.sink - 1));
    const HashFormat format{.bits = 128, .norms = true};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    std::vector<float> weights(static_cast<size_t>(c.kv_heads * c.head_dim * format.bits));
    for (float& w : weights) w = normal(random);
    const float* device_weights = Upload(weights);
    for (int32_t s = 0; s < sequences(); ++s) {
      std::vector<float> keys(
          static_cast<size_t>((views_[static_cast<size_t>(s)].past + c.growth) * c.head_dim));
      for (float& x : keys) x = normal(random);
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        const std::vector<std::byte*> pages =
            PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
        const HashEncodeWork work{.keys = keys.data(),
                                  .key_stride = c.head_dim,
                                  .begin = 0,
                                  .count = static_cast<int64_t>(keys.size()) / c.head_dim,
                                  .weight = weights.data() + int64_t{h} * c.head_dim * format.bits,
                                  .metadata = {pages.data(), c.metadata_page_tokens}};
        ops::HashEncode(*cpu_stream_, format, c.head_dim, {&work, 1});
      }
      Push(PagesOf(s, kMetadata));
      Pull(PagesOf(s, kLabels));
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        if (!IsOffloaded(h)) continue;
        float* label = HostLabel(s, ListOf(h));
        for (int32_t i = 0; i < c.group * c.head_dim; ++i) label[i] = normal(random);
      }
      Push(PagesOf(s, kLabels));
    }
    layer_.tau = Upload(std::vector<float>(static_cast<size_t>(c.kv_heads), 0.6f));
    layer_.importance = Upload(std::vector<float>(static_cast<size_t>(c.kv_heads * c.group), 1.0f));
    std::vector<int32_t> fill(static_cast<size_t>(sequences()), 1);
    void* select_scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    void* update_scratch = Poisoned<std::byte>(
        std::max<size_t>(256, UpdateSlotsScratchBytes(shape_, step_.capacity, step_.max_context)));
    std::vector<float> q(static_cast<size_t>((sequences() + 1) * query_cols()));
    for (float& x : q) x = normal(random);

    std::vector<std::set<int32_t>> attended(PairOf(sequences(), 0));
    const auto check = [&](int step, bool filled) {
      const auto refresh = Download(layer_.refresh, PairOf(sequences(), 0));
      for (int32_t s = 0; s < sequences(); ++s) {
        Pull(PagesOf(s, kSlots));
        const int32_t n = views_[static_cast<size_t>(s)].past + (filled ? 0 : 1);
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          if (!IsOffloaded(h)) continue;
          const std::string where = c.Name() + ", step " + std::to_string(step) +
                                    (filled ? " fill" : "") + ", sequence " + std::to_string(s) +
                                    ", head " + std::to_string(h);
          const size_t pair = PairOf(s, h);
          const std::set<int32_t> got = Attended(where, s, ListOf(h));
          if (refresh[pair] == 1) {
            const std::vector<int32_t> selected = Selected(s, h);
            attended[pair] = {selected.begin(), selected.end()};
            ASSERT_EQ(static_cast<int32_t>(selected.size()),
                      std::min(shape_.windows.Rows(n), shape_.windows.Candidates(n)))
                << where;
            misses += !filled;
          } else if (shape_.windows.AllFit(n)) {
            attended[pair].clear();
            for (int32_t t = shape_.windows.SinkRows(n); t < shape_.windows.RecentBegin(n); ++t) {
              attended[pair].insert(t);
            }
          } else {
            ++hits;
          }
          ASSERT_EQ(got, attended[pair]) << where;
          ASSERT_LE(State(s, ListOf(h)).used, shape_.windows.CacheSlots(n)) << where;
          // Sink and recent rows are in their slots. The store's codes of tokens since the fill are
          // made from the rows in those slots (also in the sink, if it was not full), and decoding
          // those codes does not always give the same row.
          const auto expect_fixed = [&](int32_t t) {
            if (HasCodes() && t >= c.past[static_cast<size_t>(s)]) {
              ExpectStored(where, s, ListOf(h), t, shape_.windows.FixedSlot(t));
            } else {
              ExpectRow(where, s, ListOf(h), t, shape_.windows.FixedSlot(t));
            }
          };
          const int32_t tokens = views_[static_cast<size_t>(s)].past;
          for (int32_t t = 0; t < shape_.windows.SinkRows(tokens); ++t) expect_fixed(t);
          for (int32_t t = shape_.windows.RecentBegin(tokens); t < tokens; ++t) expect_fixed(t);
        }
      }
    };
    const int32_t* device_fill = Upload(fill);
    BeginFill(*stream_, step_, shape_, layer_, device_fill);
    HashSelect(*stream_, step_, shape_, layer_, format, device_weights,
               {.q = nullptr, .scale = 1, .fill = true}, select_scratch);
    UpdateSlots(*stream_, step_, shape_, layer_, true, true, update_scratch);
    PullRows(*stream_, step_, shape_, layer_, 8);
    FillFixed(*stream_, step_, shape_, layer_, device_fill);
    check(-1, true);
    if (HasFatalFailure()) return;
    for (int step = 0; step < testing::Rounds(14); ++step) {
      for (float& x : q) x += 0.4f * normal(random);
      const MatrixView queries = Queries(q);
      for (int again = 0; again < 1 + (step == 3); ++again) {  // a repeated step
        Lookup(*stream_, step_, shape_, layer_, Aggregation::kImportance, queries);
        HashSelect(*stream_, step_, shape_, layer_, format, device_weights,
                   {.q = &queries, .scale = 1}, select_scratch);
        UpdateSlots(*stream_, step_, shape_, layer_, true, false, update_scratch);
        PullRows(*stream_, step_, shape_, layer_, 8);
        if (again == 0) check(step, false);
        if (HasFatalFailure()) return;
      }
      check(step, false);
      if (HasFatalFailure()) return;
      // Writes the step's own row into the ring.
      for (int32_t s = 0; s < sequences(); ++s) {
        StepSequence& view = views_[static_cast<size_t>(s)];
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          if (!IsOffloaded(h)) continue;
          std::byte* ring =
              HostRow(s, layer_.slots, ListOf(h), shape_.windows.FixedSlot(view.past));
          ConvertRow(WholeFormat(layer_.store),
                     WholeRow(s, layer_.store, ListOf(h), view.past).data(), layer_.slots.format,
                     ring);
          if (!HasCodes()) continue;
          // The store's codes are made from the row in the ring.
          std::vector<std::byte> whole(WholeFormat(layer_.store).row_bytes());
          ConvertRow(layer_.slots.format, ring, WholeFormat(layer_.store), whole.data());
          HostScales(s, ListOf(h), view.past) =
              SplitScales(WholeFormat(layer_.store), whole.data(),
                          HostRow(s, layer_.store, ListOf(h), view.past));
        }
        for (const TableId table : {kSlots, kStore, kScales}) Push(PagesOf(s, table));
        ++view.past;
        // As in policy litecache: the lookup of the step in which a row leaves runs before the row
        // is stored.
        view.stored = std::max(c.past[static_cast<size_t>(s)], view.past - shape_.windows.recent);
      }
      PushViews();
    }
  }
  EXPECT_GT(hits + misses, 0);
}

}  // namespace
}  // namespace litecache::ops::cuda
