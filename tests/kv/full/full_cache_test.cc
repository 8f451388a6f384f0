// Policy `full` against a plain implementation of attention over the appended rows.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "kv/attention_error.h"
#include "kv/cache.h"
#include "kv/layout.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

using Rows = std::vector<std::vector<float>>;  // [token][kv_heads * head_dim]

class FullCacheTest : public ::testing::TestWithParam<Layout> {};

TEST_P(FullCacheTest, AttendsWhatWasAppendedThroughForksAndReleases) {
  const Layout layout = GetParam();
  const PageLayout pages(layout);
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  CpuDevice device(2);
  auto stream = device.CreateStream();
  auto cache = CreateFullCache(device, layout, 40 * pages.block_bytes());
  const int64_t kv_cols = layout.kv_heads * layout.head_dim;
  const int64_t q_cols = layout.q_heads * layout.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));

  struct Model {
    std::vector<Rows> k, v;  // [layer]
  };
  std::map<SequenceId, Model> model;
  const auto create = [&] {
    model[cache->Create()] = {std::vector<Rows>(static_cast<size_t>(layout.layers)),
                              std::vector<Rows>(static_cast<size_t>(layout.layers))};
  };
  create();
  create();
  uint64_t written = 0;
  for (int i = 0; i < 25; ++i) {
    if (random() % 4 == 0) create();
    if (random() % 3 == 0) {
      auto parent = std::next(model.begin(), static_cast<int64_t>(random() % model.size()));
      model[cache->Fork(parent->first)] = parent->second;
    }
    if (random() % 4 == 0 && model.size() > 2) {
      auto gone = std::next(model.begin(), static_cast<int64_t>(random() % model.size()));
      cache->Release(gone->first);
      model.erase(gone);
    }
    Step step;
    for (const auto& [id, rows] : model) {
      if (random() % 3 == 0) continue;
      const int64_t count =
          random() % 4 == 0
              ? 1 + static_cast<int64_t>(random() % 2 * pages.page_tokens / 2 + random() % 9)
              : 1;
      step.sequences.push_back({id, step.rows, count, cache->Length(id)});
      step.rows += count;
    }
    if (step.rows == 0) continue;
    cache->BeginStep(step);
    for (int64_t layer = 0; layer < layout.layers; ++layer) {
      const auto make = [&](int64_t cols) {
        std::vector<float> values(static_cast<size_t>(step.rows * cols));
        for (float& value : values) value = normal(random);
        return values;
      };
      std::vector<float> q = make(q_cols), k = make(kv_cols), v = make(kv_cols);
      std::vector<float> out(q.size(), NAN);
      const auto view = [&](std::vector<float>& values, int64_t cols) {
        return MatrixView::Of(values.data(), step.rows, cols);
      };
      cache->Attend(*stream, layer, step, view(q, q_cols), view(k, kv_cols), view(v, kv_cols),
                    scale, view(out, q_cols));
      for (const StepSequence& sequence : step.sequences) {
        Rows& all_k = model[sequence.id].k[static_cast<size_t>(layer)];
        Rows& all_v = model[sequence.id].v[static_cast<size_t>(layer)];
        for (int64_t row = 0; row < sequence.rows; ++row) {
          const int64_t at = (sequence.first_row + row) * kv_cols;
          all_k.emplace_back(k.begin() + at, k.begin() + at + kv_cols);
          all_v.emplace_back(v.begin() + at, v.begin() + at + kv_cols);
        }
        for (int64_t row = 0; row < sequence.rows; ++row) {
          std::vector<double> expected;
          for (int64_t head = 0; head < layout.q_heads; ++head) {
            const float* query = &q[static_cast<size_t>((sequence.first_row + row) * q_cols +
                                                        head * layout.head_dim)];
            const int64_t offset = head / (layout.q_heads / layout.kv_heads) * layout.head_dim;
            std::vector<double> weights;
            double highest = -HUGE_VAL, sum = 0;
            for (int64_t t = 0; t <= sequence.past + row; ++t) {
              double dot = 0;
              for (int64_t d = 0; d < layout.head_dim; ++d) {
                dot += double{query[d]} *
                       all_k[static_cast<size_t>(t)][static_cast<size_t>(offset + d)];
              }
              weights.push_back(dot * scale);
              highest = std::max(highest, dot * scale);
            }
            for (double& weight : weights) sum += weight = std::exp(weight - highest);
            for (int64_t d = 0; d < layout.head_dim; ++d) {
              double x = 0;
              for (size_t t = 0; t < weights.size(); ++t) {
                x += weights[t] / sum * all_v[t][static_cast<size_t>(offset + d)];
              }
              expected.push_back(x);
            }
          }
          const auto got =
              std::span(out).subspan(static_cast<size_t>((sequence.first_row + row) * q_cols),
                                     static_cast<size_t>(q_cols));
          ASSERT_LT(testing::RelativeError(got, expected), AttentionTolerance(layout.dtype))
              << "step " << i << " layer " << layer << " sequence " << sequence.id;
        }
      }
    }
    cache->EndStep(step);
    written += static_cast<uint64_t>(step.rows) * layout.token_bytes();
    ASSERT_EQ(cache->GetStats().bytes_written, written);
  }
  while (!model.empty()) {
    cache->Release(model.begin()->first);
    model.erase(model.begin());
  }
  EXPECT_EQ(cache->GetStats().used.device, 0u);
  EXPECT_GT(cache->GetStats().bytes_read, written);
}

INSTANTIATE_TEST_SUITE_P(Layouts, FullCacheTest,
                         ::testing::Values(Layout{2, 6, 2, 64, DType::kF32},
                                           Layout{1, 4, 4, 80, DType::kF32},
                                           Layout{3, 4, 1, 64, DType::kBF16},
                                           Layout{1, 8, 2, 128, DType::kBF16}));

TEST(FullCache, StepsThatDoNotFitTogetherAreRefused) {
  CpuDevice device(1);
  const Layout layout{1, 2, 1, 64, DType::kBF16};
  const PageLayout pages(layout);
  auto cache = CreateFullCache(device, layout, 3 * pages.block_bytes());
  EXPECT_EQ(cache->policy(), "full");
  EXPECT_EQ(cache->BytesFor(pages.page_tokens + 1).device, 2 * pages.block_bytes());
  const SequenceId a = cache->Create();
  const SequenceId b = cache->Create();
  EXPECT_THROW(cache->BeginStep({{{a, 0, 1, 0}, {a, 1, 1, 0}}, 2}), InvalidArgument);
  EXPECT_THROW(cache->BeginStep({{{a, 0, 1, 5}}, 1}), InvalidArgument);
  EXPECT_THROW(cache->BeginStep({{{a, 0, 2, 0}}, 1}), InvalidArgument);
  EXPECT_THROW(cache->BeginStep({{{a, 0, 1, 0}}, 2}), InvalidArgument);
  EXPECT_THROW(cache->BeginStep({{{77, 0, 1, 0}}, 1}), InvalidArgument);
  const Step step{
      {{a, 0, 2 * pages.page_tokens, 0}, {b, 2 * pages.page_tokens, pages.page_tokens + 1, 0}},
      3 * pages.page_tokens + 1};
  EXPECT_THROW(cache->BeginStep(step), CapacityError);
  EXPECT_EQ(cache->GetStats().used.device, 0u);
  EXPECT_EQ(cache->GetStats().capacity.device, 3 * pages.block_bytes());
}

}  // namespace
}  // namespace litecache::kv
