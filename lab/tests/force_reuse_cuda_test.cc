#include "lab/forced/force_reuse_cuda.h"

#include <algorithm>
#include <numeric>

#include "ops/litecache_testing_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

class ForceReuseTest : public LiteCacheTest {
 protected:
  LiteCacheCase RandomCase(Random& random, int round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 9);
    c.group = Uniform(random, 1, 4);
    c.head_dim = 32;
    c.share = 0.05 * Uniform(random, 1, 8);
    c.slots_factor = round % 3 == 0 ? 1.7 : 1;
    c.codes = round % 2 == 1;
    if (c.codes) c.store = RowEncoding::kFp8;
    const int32_t sequences = Uniform(random, 1, 5);
    for (int32_t s = 0; s < sequences; ++s) {
      c.past.push_back(testing::Tokens(Uniform(random, 60, round % 4 == 0 ? 40000 : 3000)));
    }
    if (c.kv_heads > 2) c.resident = {Uniform(random, 0, c.kv_heads - 1)};
    return c;
  }

  ForcedLayer RandomTable(Random& random, std::vector<ForcedHead>* heads) {
    const int32_t steps = Uniform(random, 1, 7), layers = 3;
    heads->resize(static_cast<size_t>(steps * layers * case_.kv_heads));
    for (ForcedHead& head : *heads) {
      head.hit = Uniform(random, -1, 1);
      head.kept = Uniform(random, 0, ForcedHead::kWhole);
      if (Uniform(random, 0, 1) == 0) head.rows = Uniform(random, 0, ForcedHead::kWhole);
    }
    // For the second layer.
    return {.heads = Upload(*heads) + case_.kv_heads,
            .steps = steps,
            .stride = layers * case_.kv_heads};
  }
  void* Scratch() {
    return Poisoned<std::byte>(ForceScratchBytes(shape_, step_.capacity, step_.max_context));
  }
  ForcedHead Expected(const std::vector<ForcedHead>& heads, const ForcedLayer& forced, int32_t s,
                      int32_t h) const {
    const StepSequence& view = views_[static_cast<size_t>(s)];
    const int32_t step = ForcedStep(view.past, view.first_row, forced.steps);
    return heads[static_cast<size_t>(step * forced.stride + case_.kv_heads + h)];
  }
};

TEST_F(ForceReuseTest, ThresholdsAreThoseOfTheSequencesSteps) {
  Random random = testing::TestRandom(31);
  for (int round = 0; round < testing::Rounds(20); ++round) {
    Build(random, RandomCase(random, round));
    const int32_t steps = Uniform(random, 1, 7), layers = Uniform(random, 1, 40);
    const int32_t heads = layers * case_.kv_heads;
    // Every value is different.
    std::vector<float> table(static_cast<size_t>(steps * heads)), checks(table.size());
    std::iota(table.begin(), table.end(), 1.0f);
    std::iota(checks.begin(), checks.end(), 0.5f);
    const int32_t room = step_.capacity + Uniform(random, 0, 3);
    std::vector<float> none(static_cast<size_t>(room * heads), -1);
    float* lookups = Upload(none);
    float* verified = Upload(none);
    ForceThresholds(*stream_, step_,
                    {.table = Upload(table),
                     .check_table = Upload(checks),
                     .steps = steps,
                     .heads = heads,
                     .kv_heads = case_.kv_heads,
                     .sequences = room,
                     .lookups = lookups,
                     .checks = verified});
    const auto got = Download(lookups, none.size()), got_checks = Download(verified, none.size());
    for (int32_t s = 0; s < sequences(); ++s) {
      const StepSequence& view = views_[static_cast<size_t>(s)];
      const int32_t step = ForcedStep(view.past, view.first_row, steps);
      for (int32_t h = 0; h < heads; ++h) {
        const auto at = static_cast<size_t>((h / case_.kv_heads * room + s) * case_.kv_heads +
                                            h % case_.kv_heads);
        const auto from = static_cast<size_t>(step * heads + h);
        ASSERT_EQ(got[at], table[from]) << case_.Name() << ", sequence " << s << ", head " << h;
        ASSERT_EQ(got_checks[at], checks[from]) << case_.Name() << ", sequence " << s;
      }
    }
  }
}

TEST_F(ForceReuseTest, SelectionsAreThoseOfTheCpu) {
  Random random = testing::TestRandom(32);
  for (int round = 0; round < testing::Rounds(16); ++round) {
    Build(random, RandomCase(random, round));
    std::vector<ForcedHead> heads;
    const ForcedLayer forced = RandomTable(random, &heads);
    const size_t pairs = PairOf(sequences() + 1, 0);
    std::vector<int32_t> refresh(pairs, 0), counts(pairs, -3);
    std::vector<int32_t> selected(pairs * static_cast<size_t>(shape_.max_rows), -5);
    std::vector<std::vector<int32_t>> cached(pairs), want(pairs);
    for (int32_t s = 0; s < sequences(); ++s) {
      const int32_t n = views_[static_cast<size_t>(s)].past + 1;
      const int32_t candidates = shape_.windows.Candidates(n), begin = shape_.windows.SinkRows(n);
      std::vector<HeadState> states(static_cast<size_t>(lists_[kSlots]));
      for (int32_t h = 0; h < case_.kv_heads; ++h) {
        if (!IsOffloaded(h)) continue;
        const size_t pair = PairOf(s, h);
        refresh[pair] = Uniform(random, 0, 3) > 0;
        const int32_t used = Uniform(random, 0, 5) == 0 ? 0 : shape_.windows.CacheSlots(n);
        states[static_cast<size_t>(ListOf(h))].used = used;
        std::vector<int32_t> all(static_cast<size_t>(candidates));
        std::iota(all.begin(), all.end(), begin);
        std::shuffle(all.begin(), all.end(), random);
        cached[pair].assign(all.begin(), all.begin() + used);
        for (int32_t i = 0; i < used; ++i) {
          HostPosition(s, ListOf(h), shape_.cache_begin + i) = all[static_cast<size_t>(i)];
        }
        if (refresh[pair] == 0) continue;
        const ForcedHead head = Expected(heads, forced, s, h);
        want[pair].resize(static_cast<size_t>(
            std::min(ForcedRowCount(head, shape_.windows.Rows(n)), candidates)));
        const ForceOverlapWork work{.kept = head.kept,
                                    .cached = cached[pair].data(),
                                    .cached_count = used,
                                    .begin = begin,
                                    .end = begin + candidates,
                                    .selected = want[pair].data(),
                                    .count = static_cast<int64_t>(want[pair].size())};
        ops::ForceOverlap(*cpu_stream_, {&work, 1});
      }
      Push(PagesOf(s, kSlots));
      gpu_->Copy(views_[static_cast<size_t>(s)].heads, states.data(),
                 states.size() * sizeof(HeadState));
    }
    gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
    gpu_->Copy(layer_.selected_count, counts.data(), counts.size() * 4);
    gpu_->Copy(layer_.selected, selected.data(), selected.size() * 4);
    ForceOverlap(*stream_, step_, shape_, layer_, forced, layer_.selected, layer_.selected_count,
                 Scratch());
    stream_->Synchronize();
    const auto got_counts = Download(layer_.selected_count, pairs);
    for (int32_t s = 0; s < sequences(); ++s) {
      for (int32_t h = 0; h < case_.kv_heads; ++h) {
        const size_t pair = PairOf(s, h);
        const std::string where = case_.Name() + ", sequence " + std::to_string(s) + ", head " +
                                  std::to_string(h) + ", round " + std::to_string(round);
        if (!IsOffloaded(h) || refresh[pair] == 0) {
          EXPECT_EQ(got_counts[pair], -3) << where;
          continue;
        }
        EXPECT_EQ(Selected(s, h), want[pair]) << where;
      }
    }
  }
}

TEST_F(ForceReuseTest, LongContexts) {
  Random random = testing::TestRandom(33);
  LiteCacheCase c;
  c.kv_heads = 1;
  c.group = 1;
  c.head_dim = 4;
  c.tokens = 3000;
  c.past = {800000};
  Build(random, c);
  const std::vector<ForcedHead> heads = {{.hit = 0, .kept = ForcedHead::kWhole / 2}};
  const ForcedLayer forced{.heads = Upload(heads), .steps = 1, .stride = 1};
  const int32_t n = c.past[0] + 1, begin = shape_.windows.SinkRows(n),
                end = shape_.windows.RecentBegin(n);
  std::vector<int32_t> cached, want(3000);
  for (int32_t i = 0; i < 3000; ++i) {
    cached.push_back(begin + i * 266);
    HostPosition(0, ListOf(0), shape_.cache_begin + i) = cached.back();
  }
  Push(PagesOf(0, kSlots));
  std::vector<HeadState> states(static_cast<size_t>(lists_[kSlots]));
  states[static_cast<size_t>(ListOf(0))].used = 3000;
  gpu_->Copy(views_[0].heads, states.data(), states.size() * sizeof(HeadState));
  const int32_t refresh = 1;
  gpu_->Copy(layer_.refresh, &refresh, 4);
  const ForceOverlapWork work{.kept = heads[0].kept,
                              .cached = cached.data(),
                              .cached_count = 3000,
                              .begin = begin,
                              .end = end,
                              .selected = want.data(),
                              .count = 3000};
  ops::ForceOverlap(*cpu_stream_, {&work, 1});
  ForceOverlap(*stream_, step_, shape_, layer_, forced, layer_.selected, layer_.selected_count,
               Scratch());
  EXPECT_EQ(Selected(0, 0), want);
}

}  // namespace
}  // namespace litecache::lab::ops::cuda
