#include "ops/reuse/qsac_lookup_cuda.h"

#include "ops/litecache_testing_cuda.h"
#include "ops/reuse/qsac_lookup.h"

namespace litecache::ops::cuda {
namespace {

class QsacLookupCudaTest : public LiteCacheTest {};

// Labels at a random distance from the queries; tau in a range with both outcomes.
TEST_F(QsacLookupCudaTest, DecidesAsTheCpu) {
  Random random = testing::TestRandom(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < testing::Rounds(12); ++round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 5);
    c.group = 1 << Uniform(random, 0, 3);
    c.head_dim = round % 3 == 0 ? 64 : round % 3 == 1 ? 128 : 2 * Uniform(random, 1, 50);
    for (int i = Uniform(random, 1, 6); i > 0; --i) c.past.push_back(Uniform(random, 1, 400));
    if (c.kv_heads > 2) c.resident = {1};
    Build(random, c);
    const auto aggregation = static_cast<Aggregation>(round % 4);
    const int32_t size = c.group * c.head_dim;
    std::vector<float> q(static_cast<size_t>((sequences() + 1) * query_cols()));
    for (float& x : q) x = normal(random);
    std::vector<float> importance(static_cast<size_t>(c.kv_heads * c.group));
    for (float& x : importance) x = std::max(0.0f, normal(random));
    std::vector<float> tau(static_cast<size_t>(c.kv_heads), 0.7f);
    layer_.importance = Upload(importance);
    layer_.tau = Upload(tau);
    std::vector<std::vector<float>> labels(PairOf(sequences(), 0));
    std::vector<int32_t> pending(PairOf(sequences(), 0));
    for (int32_t s = 0; s < sequences(); ++s) {
      std::vector<HeadState> states(static_cast<size_t>(lists_[kSlots]));
      const int32_t candidates = shape_.windows.Candidates(views_[static_cast<size_t>(s)].past);
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        if (!IsOffloaded(h)) continue;
        HeadState& state = states[static_cast<size_t>(ListOf(h))];
        state = {.used = candidates,
                 .update = 7,
                 .window_begin = 3,
                 .pending = Uniform(random, 0, 4) == 0};
        const float noise = 0.3f * static_cast<float>(Uniform(random, 0, 10));
        const bool same = Uniform(random, 0, 5) == 0;
        float* label = HostLabel(s, ListOf(h));
        for (int32_t i = 0; i < size; ++i) {
          label[i] = QueryOf(q, s, h)[i] + (same ? 0 : noise * normal(random));
        }
        labels[PairOf(s, h)].assign(label, label + size);
        pending[PairOf(s, h)] = state.pending;
      }
      Push(PagesOf(s, kLabels));
      gpu_->Copy(views_[static_cast<size_t>(s)].heads, states.data(),
                 states.size() * sizeof(HeadState));
    }
    Lookup(*stream_, step_, shape_, layer_, aggregation, Queries(q));
    const auto refresh = Download(layer_.refresh, PairOf(sequences(), 0));
    const auto moved = Download(layer_.moved_count, PairOf(sequences(), 0));
    std::vector<DeviceHeadCounters> counters = Download(counters_, static_cast<size_t>(c.kv_heads));
    for (int32_t s = 0; s < sequences(); ++s) {
      const int32_t n = views_[static_cast<size_t>(s)].past + 1;
      Pull(PagesOf(s, kLabels));
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        const std::string where =
            c.Name() + ", sequence " + std::to_string(s) + ", head " + std::to_string(h);
        const size_t pair = PairOf(s, h);
        if (!IsOffloaded(h)) {
          EXPECT_EQ(refresh[pair], 0) << where;
          continue;
        }
        const int32_t list = ListOf(h);
        const HeadState state = State(s, list);
        const std::vector<float> label(HostLabel(s, list), HostLabel(s, list) + size);
        const std::vector<float> query(QueryOf(q, s, h), QueryOf(q, s, h) + size);
        if (shape_.windows.AllFit(n)) {
          const bool grows = shape_.windows.Candidates(n) > shape_.windows.Candidates(n - 1);
          EXPECT_EQ(refresh[pair], 0) << where;
          EXPECT_EQ(moved[pair], grows ? 1 : 0) << where;
          EXPECT_EQ(state.used, shape_.windows.Candidates(n)) << where;
          EXPECT_EQ(state.window_begin, shape_.windows.RecentBegin(n)) << where;
          EXPECT_EQ(label, query) << where;
          continue;
        }
        std::vector<float> old = labels[pair];
        LookupWork work{.q = query.data(),
                        .label = old.data(),
                        .importance = importance.data() + h * c.group,
                        .tau = tau[static_cast<size_t>(h)]};
        QsacLookup(*cpu_stream_, c.group, c.head_dim, aggregation, {&work, 1});
        const bool near = std::abs(work.similarity - work.tau) < 1e-4f;
        if (refresh[pair] == 0) {
          EXPECT_TRUE(work.hit || near) << where << " similarity " << work.similarity;
          EXPECT_EQ(pending[pair], 0) << where;
          EXPECT_EQ(state.pending, 0) << where;
          EXPECT_EQ(state.window_begin, 3) << where;
          EXPECT_EQ(label, labels[pair]) << where << ": a hit keeps the label";
        } else {
          EXPECT_TRUE(!work.hit || near || pending[pair] == 1)
              << where << " similarity " << work.similarity;
          EXPECT_EQ(state.pending, 1) << where;
          EXPECT_EQ(label, query) << where;
        }
        counters[static_cast<size_t>(h)].lookups -= 1;
        counters[static_cast<size_t>(h)].hits -= refresh[pair] == 0;
        counters[static_cast<size_t>(h)].similarity -= static_cast<double>(work.similarity);
      }
    }
    for (const DeviceHeadCounters& counter : counters) {
      EXPECT_EQ(counter.lookups, 0u) << c.Name();
      EXPECT_EQ(counter.hits, 0u) << c.Name();
      EXPECT_NEAR(counter.similarity, 0, 1e-4) << c.Name();
    }
  }
}

TEST_F(QsacLookupCudaTest, KeepsTheLastQueryOfAChunk) {
  Random random = testing::TestRandom(2);
  LiteCacheCase c;
  c.kv_heads = 3;
  c.resident = {1};
  c.past = {90, 5};
  Build(random, c);
  views_[0].first_row = 0;
  views_[0].rows = 5;
  views_[1].first_row = 5;
  views_[1].rows = 2;
  PushViews();
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<size_t>(7 * query_cols()));
  for (float& x : q) x = normal(random);
  KeepLastQueries(*stream_, step_, shape_, layer_, Queries(q));
  const int32_t size = c.group * c.head_dim;
  for (int32_t s = 0; s < 2; ++s) {
    Pull(PagesOf(s, kLabels));
    for (int32_t h : {0, 2}) {
      const float* want = q.data() + (s == 0 ? 4 : 6) * query_cols() + h * size;
      EXPECT_EQ(std::memcmp(HostLabel(s, ListOf(h)), want, static_cast<size_t>(size) * 4), 0)
          << "sequence " << s << ", head " << h;
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
