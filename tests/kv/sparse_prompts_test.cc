// Sparse prompts in the caches that attend them: the same rows under every policy, and all rows for
// the end of a prompt.
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/device_test.h"
#include "relative_error.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr int64_t kChunks[] = {2048, 2048, 1000};

class SparsePrompts : public DeviceTest {
 protected:
  SparsePrompts() {
    layout_.layers = 2;
    layout_.q_heads = 4;
    layout_.kv_heads = 2;
    layout_.head_dim = 64;
    layout_.dtype = DType::kBF16;
  }

  // The outputs of all chunks at the last layer, [tokens][q_heads * head_dim]. The same inputs in
  // every call: keys of a block of 128 tokens have a direction in common, by a random part.
  std::vector<float> Outputs(const KvOptions& options) const {
    const Machine machine = OpenMachine(device(), 2);
    Device& on = machine.compute();
    const auto stream = on.CreateStream();
    const auto plan = MakeCachePlan(layout_, options, nullptr, on.type());
    const auto cache = plan->Create(on, {uint64_t{1} << 30, uint64_t{1} << 30});
    const SequenceId id = cache->Create();
    std::mt19937_64 random(seed_);
    std::normal_distribution<float> normal;
    const int64_t q_cols = layout_.q_heads * layout_.head_dim;
    const int64_t kv_cols = layout_.kv_heads * layout_.head_dim;
    std::vector<float> direction(static_cast<size_t>(layout_.head_dim));
    for (float& x : direction) x = normal(random);
    const auto make = [&](int64_t rows, int64_t cols, int64_t same) {
      std::vector<float> values;
      float part = 0;
      for (int64_t r = 0; r < rows; ++r) {
        if (same > 0 && r % same == 0) part = normal(random);
        for (int64_t c = 0; c < cols; ++c) {
          const float common = direction[static_cast<size_t>(c % layout_.head_dim)];
          values.push_back(normal(random) + (same > 0 ? part * common : 0));
        }
      }
      return values;
    };
    std::vector<float> result;
    int64_t past = 0;
    for (const int64_t rows : kChunks) {
      Step step;
      step.rows = rows;
      step.sequences.push_back({.id = id, .rows = rows, .past = past, .ends_prompt = rows == 1000});
      cache->BeginStep(step);
      std::vector<float> out(static_cast<size_t>(rows * q_cols));
      for (int64_t layer = 0; layer < layout_.layers; ++layer) {
        DeviceInputs inputs(on);
        const auto place = [&](const std::vector<float>& values, int64_t cols) {
          return inputs.Copy(values.data(), DType::kF32, rows, cols);
        };
        const MatrixView q = place(make(rows, q_cols, 1), q_cols);
        const MatrixView k = place(make(rows, kv_cols, 128), kv_cols);
        const MatrixView v = place(make(rows, kv_cols, 0), kv_cols);
        const MatrixView written = place(out, q_cols);
        cache->Attend(*stream, layer, step, q, k, v, 0.125f, written);
        stream->Synchronize();
        on.Download(out.data(), written.data, out.size() * sizeof(float));
      }
      cache->EndStep(step);
      result.insert(result.end(), out.begin(), out.end());
      past += rows;
    }
    cache->Release(id);
    return result;
  }

  static KvOptions Options(const std::string& policy, const std::string& prefill) {
    KvOptions options;
    options.policy = policy;
    options.prefill = prefill;
    options.prefill_mass = 0.3;
    options.host_rows = "full";
    options.prefetch = "off";
    return options;
  }

  std::span<const float> Rows(const std::vector<float>& values, int64_t begin, int64_t end) const {
    const int64_t cols = layout_.q_heads * layout_.head_dim;
    return std::span(values).subspan(static_cast<size_t>(begin * cols),
                                     static_cast<size_t>((end - begin) * cols));
  }
  Layout layout_;
  const uint64_t seed_ = testing::TestRandom()();
};

TEST_P(SparsePrompts, EveryPolicyAttendsTheSameRows) {
  const std::vector<float> dense = Outputs(Options("full", "dense"));
  const std::vector<float> sparse = Outputs(Options("full", "sparse"));
  EXPECT_EQ(sparse, Outputs(Options("litecache", "sparse")));
  // Up to 4,096 tokens of context, and below 32K with auto, nothing is left out.
  EXPECT_EQ(testing::RelativeError(Rows(sparse, 0, 2048), Rows(dense, 0, 2048)), 0);
  EXPECT_EQ(dense, Outputs(Options("full", "auto")));
  // The second chunk ends at 4,096 tokens; the last block of queries in the prompt is whole. Query
  // blocks have 128 tokens, or 192: the prompt's last 1,000 end with 40 in both cases.
  EXPECT_GT(testing::RelativeError(Rows(sparse, 2048, 4096), Rows(dense, 2048, 4096)), 0.1);
  EXPECT_GT(testing::RelativeError(Rows(sparse, 4096, 5000), Rows(dense, 4096, 5000)), 0.1);
  EXPECT_LT(testing::RelativeError(Rows(sparse, 5056, 5096), Rows(dense, 5056, 5096)), 0.02);
}

INSTANTIATE_TEST_SUITE_P(Devices, SparsePrompts, ::testing::Values("cpu", "cuda"), DeviceName());

}  // namespace
}  // namespace litecache::kv
