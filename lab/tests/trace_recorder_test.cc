// A recorded trace against the queries and keys of its text.
#include "lab/trace/trace_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "profile/recording.h"
#include "profile/similarity.h"
#include "profile/small_model.h"
#include "test_seed.h"

namespace litecache::lab {

using namespace profile;  // NOLINT

namespace {

using testing::RandomTokens;
using testing::SmallConfig;

TEST(TraceRecorder, RecordsSimilaritiesAndTopRows) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  const model::ModelConfig config = SmallConfig();
  const auto decoder = model::RandomDecoder(device, config, random(), {.dtype = DType::kF32});
  const auto tokens = RandomTokens(random, 317, 211);
  TraceOptions options;
  options.steps = 13;
  options.recent_tokens = 19;
  options.chunk = 100;
  options.lags = 5;
  const Trace trace = RecordTrace(device, *stream, *decoder, tokens, options, nullptr);
  EXPECT_EQ(trace.layers, config.layers);
  EXPECT_EQ(trace.q_heads, config.q_heads);
  EXPECT_EQ(trace.kv_heads, config.kv_heads);
  EXPECT_EQ(trace.context, 317);
  EXPECT_EQ(trace.steps, 13);
  EXPECT_EQ(trace.importance,
            std::vector<float>(static_cast<size_t>(config.layers * config.q_heads), 1));

  const Recording r = Record(device, *stream, *decoder, tokens,
                             {.steps = 13, .chunk = 64, .distances = 2}, nullptr);
  const int64_t d = config.head_dim, group = config.group();
  for (int64_t layer = 0; layer < trace.layers; ++layer) {
    for (int64_t head = 0; head < trace.kv_heads; ++head) {
      for (int64_t a = 0; a < trace.steps; ++a) {
        // Similarities.
        for (int64_t b = 0; b < trace.steps; ++b) {
          for (int64_t j = 0; j < group; ++j) {
            const float* x = r.Query(layer, r.first_step() + a, head * group + j);
            const float* y = r.Query(layer, r.first_step() + b, head * group + j);
            const double dot = std::inner_product(x, x + d, y, 0.0);
            const double norms = std::sqrt(std::inner_product(x, x + d, x, 0.0) *
                                           std::inner_product(y, y + d, y, 0.0));
            EXPECT_NEAR(trace.Cosine(layer, head * group + j, a, b), dot / norms, 1.0 / 127);
          }
        }
        // Rows: no row outside weighs more than one inside, up to rounding.
        const int64_t position = 317 - 13 + a;
        const int64_t begin = options.sink_tokens, end = position + 1 - options.recent_tokens;
        std::vector<double> weights(static_cast<size_t>(end - begin));
        for (int64_t j = 0; j < group; ++j) {
          const float* q = r.Query(layer, r.first_step() + a, head * group + j);
          std::vector<double> logits;
          for (int64_t p = begin; p < end; ++p) {
            const float* key = r.Keys(layer, head) + p * d;
            logits.push_back(double{r.scale} * std::inner_product(q, q + d, key, 0.0));
          }
          const double most = *std::max_element(logits.begin(), logits.end());
          double sum = 0;
          for (double& logit : logits) sum += logit = std::exp(logit - most);
          for (size_t i = 0; i < logits.size(); ++i) weights[i] += logits[i] / sum;
        }
        const auto& rows = trace.Rows(layer, head, a);
        EXPECT_EQ(static_cast<int64_t>(rows.size()), KvBudget{.share = 0.1}.RowsFor(position + 1));
        double least = 1e9, most_outside = 0;
        for (int64_t p = begin; p < end; ++p) {
          const double weight = weights[static_cast<size_t>(p - begin)];
          if (std::binary_search(rows.begin(), rows.end(), static_cast<int32_t>(p))) {
            least = std::min(least, weight);
          } else {
            most_outside = std::max(most_outside, weight);
          }
        }
        EXPECT_GE(least, most_outside * (1 - 1e-4));
        for (const int32_t row : rows) {
          EXPECT_GE(row, begin);
          EXPECT_LT(row, end);
        }
        const auto ranked = trace.Clusters(layer, head, a);
        EXPECT_EQ(std::set<uint16_t>(ranked.begin(), ranked.end()).size(), ranked.size());
      }
    }
  }
  // Similarities of predicted queries with actual and predicted ones.
  EXPECT_EQ(trace.distances, 2);  // of three layers
  EXPECT_EQ(trace.lags, 5);
  for (int64_t distance = 1; distance <= 2; ++distance) {
    for (int64_t layer = distance; layer < trace.layers; ++layer) {
      for (int64_t q_head = 0; q_head < trace.q_heads; ++q_head) {
        const auto query = [&](TraceQuery q) {
          return q.distance > 0 ? r.Predicted(distance, layer, q.step, q_head)
                                : r.Query(layer, r.first_step() + q.step, q_head);
        };
        for (int64_t a = 0; a < trace.steps; ++a) {
          for (int64_t b = std::max<int64_t>(a - 5, 0); b <= std::min(a + 5, trace.steps - 1);
               ++b) {
            for (const int64_t other : {int64_t{0}, distance}) {
              const TraceQuery x{a, distance}, y{b, other};
              EXPECT_NEAR(trace.Cosine(layer, q_head, x, y), Cosine(query(x), query(y), d),
                          1.0 / 127);
            }
          }
        }
      }
    }
  }
  // A predicted query that is nearly the actual one selects nearly the same rows.
  const auto overlap = [&](int64_t layer, int64_t head, TraceQuery x, TraceQuery y) {
    const auto& rows = trace.Rows(layer, head, x);
    return static_cast<double>(CommonRows(rows, trace.Rows(layer, head, y))) /
           static_cast<double>(rows.size());
  };
  double near = 0, nears = 0, far = 0, fars = 0;
  for (int64_t layer = 1; layer < trace.layers; ++layer) {
    for (int64_t head = 0; head < trace.kv_heads; ++head) {
      for (int64_t a = 0; a < trace.steps; ++a) {
        near += overlap(layer, head, {a, 0}, {a, 1});
        ++nears;
        if (a < 3) continue;
        far += overlap(layer, head, {a, 0}, {a - 3, 1});
        ++fars;
      }
    }
  }
  EXPECT_GT(near / nears, far / fars);
  // 281 tokens are clustered, in clusters of 16; a tenth of the clusters is ranked.
  EXPECT_EQ(trace.clusters, 17);
  EXPECT_EQ(trace.ranked, 2);

  // By need: a prefix, by weight, of the rows of the same budget.
  TraceOptions by_need = options;
  by_need.budget = 0.9;  // a random model's attention is nearly even
  const Trace most = RecordTrace(device, *stream, *decoder, tokens, by_need, nullptr);
  by_need.by_need = true;
  const Trace needed = RecordTrace(device, *stream, *decoder, tokens, by_need, nullptr);
  EXPECT_TRUE(needed.by_need);
  size_t fewer = 0;
  for (size_t i = 0; i < needed.rows.size(); ++i) {
    EXPECT_TRUE(std::ranges::includes(most.rows[i], needed.rows[i]));
    EXPECT_GE(10 * needed.rows[i].size(), most.rows[i].size());
    fewer += needed.rows[i].size() < most.rows[i].size() ? 1 : 0;
  }
  EXPECT_GT(fewer, needed.rows.size() / 4);

  const Trace again = RecordTrace(device, *stream, *decoder, tokens, options, nullptr);
  EXPECT_EQ(again.Bytes(), trace.Bytes());
  EXPECT_EQ(trace.text_hash.size(), 16u);
  auto other = tokens;
  other[3] = (other[3] + 1) % 211;
  EXPECT_NE(RecordTrace(device, *stream, *decoder, other, options, nullptr).text_hash,
            trace.text_hash);
  EXPECT_ERROR(
      RecordTrace(device, *stream, *decoder, std::span(tokens).first(40), options, nullptr),
      InvalidArgument, "40 tokens");
}

}  // namespace
}  // namespace litecache::lab
