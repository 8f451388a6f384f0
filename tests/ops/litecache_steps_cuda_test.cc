// The operations of policy litecache's steps, one after the other as a decode loop runs them.
#include "ops/litecache_slots_testing_cuda.h"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

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
