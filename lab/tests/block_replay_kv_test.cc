// Prompts that attend recorded blocks, on every device, compared with sums in double precision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/device_test.h"
#include "lab/blocks/block_replay.h"
#include "lab/tests/random_patterns.h"
#include "relative_error.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

constexpr int64_t kChunks[] = {5000, 2900, 700};  // at the end of a prompt, the last one

class BlockReplays : public DeviceTest {
 protected:
  BlockReplays() {
    layout_.layers = 3;
    layout_.q_heads = 4;
    layout_.kv_heads = 2;
    layout_.head_dim = 64;
    layout_.dtype = DType::kBF16;
  }

  // Values [rows][cols], the same in every call; k and v have few bits, so that bf16 holds them.
  std::vector<float> Values(int64_t rows, int64_t cols, uint64_t salt, bool round) const {
    std::mt19937_64 random(seed_ + salt);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& x : values) x = round ? static_cast<float>(bf16(normal(random))) : normal(random);
    return values;
  }
  uint64_t Salt(int64_t past, int64_t layer, int kind) const {
    return static_cast<uint64_t>((past * 8 + layer) * 4 + kind);
  }

  // Outputs by layer, [tokens][q_heads * head_dim].
  std::vector<std::vector<float>> Outputs(const std::string& policy,
                                          const std::shared_ptr<const BlockPatterns>& p) const {
    const Machine machine = OpenMachine(device(), 2);
    Device& on = machine.compute();
    const auto stream = on.CreateStream();
    KvOptions options;
    options.policy = policy;
    options.prefill = "sparse";
    options.host_rows = "full";
    options.prefetch = "off";
    const auto plan = MakeCachePlan(layout_, options, nullptr, on.type());
    EXPECT_TRUE(ReplayBlocks(plan.get(), p));
    const auto cache = plan->Create(on, {uint64_t{1} << 30, uint64_t{1} << 30});
    const SequenceId id = cache->Create();
    const int64_t q_cols = layout_.q_heads * layout_.head_dim;
    const int64_t kv_cols = layout_.kv_heads * layout_.head_dim;
    std::vector<std::vector<float>> result(static_cast<size_t>(layout_.layers));
    int64_t past = 0;
    for (const int64_t rows : kChunks) {
      Step step;
      step.rows = rows;
      step.sequences.push_back({.id = id, .rows = rows, .past = past, .ends_prompt = rows == 700});
      cache->BeginStep(step);
      for (int64_t layer = 0; layer < layout_.layers; ++layer) {
        DeviceInputs inputs(on);
        const auto place = [&](const std::vector<float>& values, int64_t cols) {
          return inputs.Copy(values.data(), DType::kF32, rows, cols);
        };
        const MatrixView q = place(Values(rows, q_cols, Salt(past, layer, 0), false), q_cols);
        const MatrixView k = place(Values(rows, kv_cols, Salt(past, layer, 1), true), kv_cols);
        const MatrixView v = place(Values(rows, kv_cols, Salt(past, layer, 2), true), kv_cols);
        std::vector<float> out(static_cast<size_t>(rows * q_cols));
        const MatrixView written = place(out, q_cols);
        cache->Attend(*stream, layer, step, q, k, v, 0.125f, written);
        stream->Synchronize();
        on.Download(out.data(), written.data, out.size() * sizeof(float));
        auto& of_layer = result[static_cast<size_t>(layer)];
        of_layer.insert(of_layer.end(), out.begin(), out.end());
      }
      cache->EndStep(step);
      past += rows;
    }
    cache->Release(id);
    return result;
  }

  Layout layout_;
  const uint64_t seed_ = testing::TestRandom()();
};

TEST_P(BlockReplays, PromptsAttendTheRecordedBlocks) {
  std::mt19937_64 random = testing::TestRandom(1);
  const int64_t d = layout_.head_dim, group = layout_.q_heads / layout_.kv_heads;
  // Fewer layers and heads than the prompt's, and fewer tokens; blocks of queries of either size.
  for (const int64_t query_rows : {128, 192}) {
    const auto p =
        std::make_shared<const BlockPatterns>(RandomPatterns(random, 2, 3, query_rows, 6144));
    const auto full = Outputs("full", p);
    EXPECT_EQ(full, Outputs("litecache", p));
    const int64_t here = device() == "cuda" ? 192 : 128;
    std::vector<float> keys[3], values[3];
    double left_out = 0;
    int64_t past = 0;
    for (const int64_t rows : kChunks) {
      for (int64_t layer = 0; layer < layout_.layers; ++layer) {
        const auto append = [&](std::vector<float>& to, int kind) {
          const auto more = Values(rows, layout_.kv_heads * d, Salt(past, layer, kind), true);
          to.insert(to.end(), more.begin(), more.end());
        };
        append(keys[layer], 1);
        append(values[layer], 2);
        const auto q = Values(rows, layout_.q_heads * d, Salt(past, layer, 0), false);
        for (int64_t i = 0; i < rows; i += 1 + static_cast<int64_t>(random() % 150)) {
          const int64_t block = i / here, first = past + block * here;
          const bool whole = rows == 700 && block == (rows - 1) / here;
          for (int64_t head = 0; head < layout_.q_heads; ++head) {
            const int64_t turn = (layer * layout_.q_heads + head) % p->q_heads;
            std::vector<double> weights;
            double highest = -1e30;
            for (int64_t t = 0; t <= past + i; ++t) {
              const int64_t b = t / 128;
              const bool kept = whole || b == 0 || b >= first / 128 ||
                                KeptAtPosition(*p, layer == 0 ? 0 : 1, turn, first, b);
              double score = -1e30;
              if (kept) {
                score = 0;
                for (int64_t c = 0; c < d; ++c) {
                  score += 0.125 * q[static_cast<size_t>((i * layout_.q_heads + head) * d + c)] *
                           keys[layer]
                               [static_cast<size_t>((t * layout_.kv_heads + head / group) * d + c)];
                }
              } else {
                left_out += 1;
              }
              weights.push_back(score);
              highest = std::max(highest, score);
            }
            double sum = 0;
            std::vector<double> want(static_cast<size_t>(d));
            for (size_t t = 0; t < weights.size(); ++t) {
              const double weight = std::exp(weights[t] - highest);
              sum += weight;
              for (int64_t c = 0; c < d; ++c) {
                want[static_cast<size_t>(c)] +=
                    weight * values[layer][(t * static_cast<size_t>(layout_.kv_heads) +
                                            static_cast<size_t>(head / group)) *
                                               static_cast<size_t>(d) +
                                           static_cast<size_t>(c)];
              }
            }
            for (double& x : want) x /= sum;
            const auto got =
                std::span(full[static_cast<size_t>(layer)])
                    .subspan(static_cast<size_t>(((past + i) * layout_.q_heads + head) * d),
                             static_cast<size_t>(d));
            ASSERT_LT(testing::RelativeError(got, want), 0.02)
                << fmt::format("layer {}, head {}, query {}, recorded blocks of {} queries", layer,
                               head, past + i, query_rows);
          }
        }
      }
      past += rows;
    }
    EXPECT_GT(left_out, 0);
  }
}

TEST_P(BlockReplays, OnlySparsePromptsReplay) {
  std::mt19937_64 random = testing::TestRandom(2);
  const auto p = std::make_shared<const BlockPatterns>(RandomPatterns(random, 1, 1, 128, 6144));
  KvOptions options;
  options.policy = "full";
  EXPECT_FALSE(ReplayBlocks(MakeCachePlan(layout_, options, nullptr, device_type()).get(), p));
  options.prefill = "auto";
  EXPECT_TRUE(ReplayBlocks(MakeCachePlan(layout_, options, nullptr, device_type()).get(), p));
  options.policy = "kvpr";
  EXPECT_FALSE(ReplayBlocks(MakeCachePlan(layout_, options, nullptr, device_type()).get(), p));
}

INSTANTIATE_TEST_SUITE_P(Devices, BlockReplays, ::testing::Values("cpu", "cuda"), DeviceName());

}  // namespace
}  // namespace litecache::lab
