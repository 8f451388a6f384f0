// All transfer engines must move the same rows: compared byte for byte with gpu-pull's slots.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "device/device_error.h"
#include "device/fake_gdrcopy/fake_gdrcopy.h"
#include "kv/slots_testing_cuda.h"
#include "kv/transfer/cpu_push_cuda.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::kv {
namespace {

using ops::RowEncoding;
using ops::cuda::LiteCacheCase;
using ops::cuda::Random;
using ops::cuda::Uniform;

class TransferTest : public SlotsTest {
 protected:
  LiteCacheCase RandomCase(Random& random, int round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 5);
    c.group = 1;
    const int32_t dims[] = {64, 128, 80, 24, 50, 512, 320};
    c.head_dim = dims[round % 7];
    c.sink = Uniform(random, 0, 5);
    c.recent = Uniform(random, 1, 40);
    c.carry = Uniform(random, 0, 30);
    c.share = 0.3;
    const RowEncoding stores[] = {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8,
                                  RowEncoding::kInt4};
    c.store = stores[round % 4];
    if (round % 3 == 2) c.encoding = RowEncoding::kF32;
    if (c.store == RowEncoding::kBF16) c.store = c.encoding;
    for (int i = Uniform(random, 1, 5); i > 0; --i) {
      c.past.push_back(Uniform(random, 0, 2) == 0 ? Uniform(random, 1, 120)
                                                  : Uniform(random, 400, 2500));
    }
    if (c.kv_heads > 1) c.resident = {1};
    return c;
  }

  // Lists of rows to move: none, a few, as many as there are slots; for some heads the same as for
  // the head before.
  MoveLists DrawLists(Random& random) {
    const size_t pairs = PairOf(sequences() + 1, 0);
    MoveLists lists(pairs, static_cast<size_t>(shape_.max_rows));
    const bool all = Uniform(random, 0, 3) == 0;
    for (int32_t s = 0; s < sequences(); ++s) {
      const int32_t n = views_[static_cast<size_t>(s)].past;
      const int32_t capacity = shape_.windows.CacheSlots(n + 1);
      std::vector<int32_t> of_last;
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        const size_t pair = PairOf(s, h);
        if (!IsOffloaded(h)) continue;
        lists.refresh[pair] = all || Uniform(random, 0, 3) > 0;
        // The lists of a pair without a refresh must not be read.
        const int32_t most = std::min(capacity, shape_.max_rows);
        const int kind = all ? 2 : Uniform(random, 0, 3);
        const int32_t count = kind == 0   ? 0
                              : kind == 1 ? Uniform(random, 0, std::min(most, 9))
                                          : most;
        std::vector<int32_t> chosen(static_cast<size_t>(n));
        std::iota(chosen.begin(), chosen.end(), 0);
        std::shuffle(chosen.begin(), chosen.end(), random);
        chosen.resize(static_cast<size_t>(std::min(count, n)));
        if (Uniform(random, 0, 2) > 0) std::sort(chosen.begin(), chosen.end());
        if (h > 0 && Uniform(random, 0, 3) == 0) chosen = of_last;
        of_last = chosen;
        std::vector<int32_t> into(static_cast<size_t>(capacity));
        std::iota(into.begin(), into.end(), shape_.cache_begin);
        std::shuffle(into.begin(), into.end(), random);
        lists.Set(pair, chosen, into);
      }
    }
    lists.CopyTo(*gpu_, layer_);
    return lists;
  }

  std::unique_ptr<TransferEngine> Create(const TransferOptions& options) {
    auto engine = CreateTransferEngine(*gpu_, *pinned_, options);
    engine->Reserve(int64_t{step_.capacity} * shape_.kv_heads, shape_.max_rows);
    return engine;
  }

  // Runs gpu-pull on the lists, then `engine`, and compares.
  void Compare(Random& random, TransferEngine& engine, const std::string& where, bool replay) {
    const auto before = Poison(random);
    PullRows(*stream_, step_, shape_, layer_, 4);
    const auto want = GetSlots();
    SetSlots(before);
    engine.BeginStep();
    const auto issue = [&] { engine.Move(*stream_, step_, shape_, layer_, 5); };
    if (replay) {
      stream_->Run(engine.key(), issue);
    } else {
      issue();
    }
    engine.EndStep();
    stream_->Synchronize();
    const auto fault = engine.Check();
    ASSERT_FALSE(fault.has_value()) << where << ": " << *fault;
    const auto got = GetSlots();
    for (size_t s = 0; s < want.size(); ++s) {
      const auto differs = std::mismatch(want[s].begin(), want[s].end(), got[s].begin()).first;
      ASSERT_EQ(differs, want[s].end())
          << where << ", sequence " << s << ": byte " << differs - want[s].begin() << " of "
          << want[s].size() << ", pages of " << PagesOf(0, ops::cuda::kSlots).page_bytes
          << ", rows of " << layer_.slots.format.row_bytes();
    }
  }

  // `described`: the expected description of the engine.
  void CompareRounds(Random& random, const char* name, int rounds, const std::string& described) {
    for (int round = 0; round < testing::Rounds(rounds); ++round) {
      const LiteCacheCase c = RandomCase(random, round);
      Build(random, c);
      TransferOptions options;
      options.engine = name;
      options.threads = Uniform(random, 1, 6);
      // Small enough that transfers wrap around it, or larger than all of them.
      options.ring_bytes = size_t{32 << 10} << Uniform(random, 0, 5);
      const auto engine = Create(options);
      EXPECT_EQ(engine->name(), name);
      EXPECT_THAT(engine->Description(), ::testing::HasSubstr(described));
      stream_ = gpu_->CreateStream();  // no recording from the previous round
      for (int step = 0; step < testing::Rounds(8); ++step) {
        DrawLists(random);
        const std::string where = engine->Description() + ", round " + std::to_string(round) +
                                  ", step " + std::to_string(step) + ", store " +
                                  std::string(Name(c.store)) + ", " + c.Name();
        Compare(random, *engine, where, engine->replayable() && step > 1);
        if (HasFatalFailure()) return;
      }
    }
  }
};

class TransferEngines : public TransferTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(TransferEngines, MoveWhatGpuPullMoves) {
  Random random = testing::TestRandom(51);
  CompareRounds(random, GetParam(), 20, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Engines, TransferEngines,
                         ::testing::Values("gpu-pull", "cpu-push", "copy"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Slots that keep codes: the store's codes in the order that attention reads, and the scales;
// nothing else is written.
TEST_F(TransferTest, PullsKeepCodes) {
  Random random = testing::TestRandom(55);
  const int32_t dims[] = {64, 128, 80, 256, 16, 96, 512};
  for (int round = 0; round < testing::Rounds(21); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.encoding = RowEncoding::kBF16;
    c.store = round % 2 == 0 ? RowEncoding::kFp8 : RowEncoding::kInt8;
    c.head_dim = dims[round % 7];
    c.codes = true;
    Build(random, c);
    ASSERT_TRUE(HasCodes());
    for (int step = 0; step < 4; ++step) {
      const MoveLists lists = DrawLists(random);
      SlotBytes want = Poison(random);
      PullRows(*stream_, step_, shape_, layer_, 1 + 5 * step);
      const SlotBytes got = GetSlots();
      SetSlots(want);
      for (int32_t s = 0; s < sequences(); ++s) {
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          const size_t pair = PairOf(s, h);
          if (lists.refresh[pair] != 1) continue;
          for (int32_t i = 0; i < lists.counts[pair]; ++i) {
            const size_t at = pair * lists.room + static_cast<size_t>(i);
            const std::byte* codes = HostRow(s, layer_.store, ListOf(h), lists.positions[at]);
            const CachedSlot cached = Cached(s, ListOf(h), lists.slots[at]);
            const std::vector<std::byte> kept = CodesAsKept(codes, cached.in_page);
            std::copy(kept.begin(), kept.end(), cached.row);
            *cached.scales = HostScales(s, ListOf(h), lists.positions[at]);
          }
        }
        ASSERT_EQ(PagesOf(s, ops::cuda::kSlots).mirror, got[static_cast<size_t>(s)])
            << c.Name() << ", store " << Name(c.store) << ", step " << step << ", sequence " << s;
      }
    }
  }
}

// With stopped threads the step ends, the error names layer and flag, and the engine continues to
// work.
TEST_F(TransferTest, PushPassesItsDeadline) {
  Random random = testing::TestRandom(52);
  LiteCacheCase c = RandomCase(random, 0);
  c.past = {2000, 1500};
  Build(random, c);
  TransferOptions options;
  options.engine = "cpu-push";
  options.threads = 3;
  options.deadline_ns = 200 * 1000 * 1000;
  const auto engine = Create(options);
  auto& push = dynamic_cast<CpuPush&>(*engine);
  for (int fault = 0; fault < 3; ++fault) {
    do {
      DrawLists(random);
    } while (Download(layer_.moved_count, 1)[0] == 0 || Download(layer_.refresh, 1)[0] == 0);
    Compare(random, *engine, "before fault " + std::to_string(fault), false);
    if (HasFatalFailure()) return;
    engine->BeginStep();
    push.pusher().Stop();
    const auto begin = std::chrono::steady_clock::now();
    // The first layer's wait ends at its deadline; the others do not wait.
    for (int64_t layer = 7; layer < 20; ++layer) {
      engine->Move(*stream_, step_, shape_, layer_, layer);
    }
    engine->EndStep();
    stream_->Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took.count(), 0.2);
    EXPECT_LT(took.count(), 2);
    const auto error = engine->Check();
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(*error, ::testing::HasSubstr("layer 7"));
    EXPECT_THAT(*error, ::testing::HasSubstr("chunk"));
    EXPECT_THAT(*error, ::testing::HasSubstr("flag"));
    EXPECT_FALSE(engine->Check().has_value());
  }
  Compare(random, *engine, "after the faults", false);
}

// With GDRCopy (here a fake one) threads write to GPU memory; if it refuses, to pinned memory, and
// the engine reports the reason.
TEST_F(TransferTest, PushWritesTheGpusMemory) {
  testing::FakeGdrCopy gdr;
  if (!gdr.reason().empty()) GTEST_SKIP() << gdr.reason();
  Random random = testing::TestRandom(56);
  CompareRounds(random, "cpu-push", 8, "into GPU memory through GDRCopy");
  if (HasFatalFailure()) return;
  EXPECT_TRUE(gdr.nothing_is_left());
  gdr.state().pin_error = 12;
  CompareRounds(random, "cpu-push", 2, "of pinned memory (GDRCopy cannot pin");
  gdr.state().pin_error = 0;
  gdr.state().has_driver = false;
  CompareRounds(random, "cpu-push", 2, "of pinned memory (GDRCopy's kernel driver (gdrdrv)");
}

// Transfers of one step on two streams.
TEST_F(TransferTest, StreamsTakeTurns) {
  Random random = testing::TestRandom(53);
  for (const char* name : {"cpu-push", "copy"}) {
    LiteCacheCase c = RandomCase(random, 0);
    c.past = {2400};
    Build(random, c);
    const auto engine = Create({.engine = name, .threads = 2});
    const auto other = gpu_->CreateStream();
    for (int step = 0; step < 10; ++step) {
      DrawLists(random);
      const auto before = Poison(random);
      PullRows(*stream_, step_, shape_, layer_, 4);
      const auto want = GetSlots();
      SetSlots(before);
      engine->BeginStep();
      for (int64_t layer = 0; layer < 4; ++layer) {
        engine->Move(layer % 2 == 0 ? *stream_ : *other, step_, shape_, layer_, layer);
      }
      engine->EndStep();
      stream_->Synchronize();
      other->Synchronize();
      ASSERT_FALSE(engine->Check().has_value());
      ASSERT_EQ(GetSlots(), want) << name << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace litecache::kv
