// Slots: the rows in them after an update, and that they equal the store's rows.
#include "ops/litecache_slots_testing_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

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
  const int32_t head_dims[] = {16, 48, 64, 80, 96, 112, 128, 160, 256, 272, 512, 20, 7};
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

}  // namespace
}  // namespace litecache::ops::cuda
