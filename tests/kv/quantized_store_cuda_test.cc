// Policy litecache on a GPU with quantized host rows against exact ones: outputs differ by the
// rounding of the codes (tests/kv/litecache/policy_test.cc has the CPU's test).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "device/cuda/cuda_devices.h"
#include "device/machine.h"
#include "kv/attention_error.h"
#include "kv/litecache/harness.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

// The largest error over the layers.
double LayersError(const std::vector<std::vector<float>>& a,
                   const std::vector<std::vector<float>>& b) {
  double largest = 0;
  for (size_t layer = 0; layer < a.size(); ++layer) {
    largest = std::max(largest, testing::RelativeError(a[layer], b[layer]));
  }
  return largest;
}

class QuantizedStoreOnGpu : public ::testing::TestWithParam<CodeRounding> {};

TEST_P(QuantizedStoreOnGpu, StaysCloseToExactRows) {
  if (FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom(67);
  constexpr Layout kLayout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .dtype = DType::kF32};
  const Machine machine = OpenMachine("cuda", 2);
  const auto stream = machine.compute().CreateStream();
  for (const bool prefetch : {false, true}) {
    KvOptions options;
    options.policy = "litecache";
    options.retriever = "exact";
    options.budget = KvBudget::Parse("100%");
    options.resident_first_layer = false;
    options.prefetch = prefetch ? "on" : "off";
    std::unique_ptr<Cache> caches[2];
    for (std::unique_ptr<Cache>& cache : caches) {
      cache = PlanLiteCache(kLayout, options, nullptr, DeviceType::kCuda)
                  ->Create(machine.compute(), kPlenty);
      options.host_rows = GetParam().format;
    }
    QuerySource source(kLayout, 0.1, random());
    double sum = 0;
    int steps = 0;
    const auto step_of = [&](const std::vector<Part>& parts) {
      const Step step = MakeStep(*caches[0], parts);
      StepInputs inputs = source.Draw(step);
      std::vector<std::vector<float>> outs[2];
      for (int i = 0; i < 2; ++i) {
        caches[i]->BeginStep(step);
        outs[i] = RunLayers(*caches[i], machine.compute(), *stream, step, inputs,
                            1.0f / std::sqrt(32.0f), kLayout.layers);
        caches[i]->EndStep(step);
      }
      return LayersError(outs[1], outs[0]);
    };
    const auto add = [&](const std::vector<Part>& parts) {
      sum += std::pow(step_of(parts), 2);
      ++steps;
    };
    const SequenceId a = caches[0]->Create(), b = caches[0]->Create();
    ASSERT_EQ(caches[1]->Create(), a);
    ASSERT_EQ(caches[1]->Create(), b);
    EXPECT_LE(step_of({{a, 333, false}, {b, 50, false}}), 1e-5) << "a chunk sees itself exactly";
    add({{a, 100, false}, {b, 1, true}});
    for (int i = 0; i < 60; ++i) add({{a}, {b}});
    add({{b, 40, false}, {a}});
    for (int i = 0; i < 20; ++i) add({{a}, {b}});
    // The mean over the steps of the larger error of the two layers.
    const double error = std::sqrt(sum / steps);
    EXPECT_LT(error, 1.3 * GetParam().OfOutputs());
    EXPECT_GT(error, 0.5 * GetParam().OfOutputs()) << "the store does not seem to be quantized";
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedStoreOnGpu, ::testing::ValuesIn(kCodeRoundings),
                         [](const auto& rows) { return rows.param.format; });

// Slots with codes and slots with expanded rows contain the same values, except that the latter are
// rounded to bf16: so whole steps must agree, with one sequence (whose pulls have separate SMs) and
// with several, including forked ones.
TEST(SlotsOfCodes, AttendAsExpandedRows) {
  if (FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom(68);
  const Machine machine = OpenMachine("cuda", 2);
  const auto stream = machine.compute().CreateStream();
  int round = 0;
  for (const char* rows : {"fp8", "int8"}) {
    for (const int64_t head_dim : {64, 80, 128}) {
      const Layout layout{
          .layers = 4, .q_heads = 8, .kv_heads = 2, .head_dim = head_dim, .dtype = DType::kBF16};
      KvOptions options;
      options.policy = "litecache";
      options.retriever = "exact";
      options.host_rows = rows;
      options.budget = KvBudget::Parse("150");
      options.recent_tokens = 8;
      options.carry_tokens = 8;
      options.resident_first_layer = false;
      options.thresholds = "fixed";
      options.eta = 0.9;
      options.prefetch = round % 2 == 0 ? "2" : "off";
      options.delta_update = round % 3 != 2;
      options.slots = options.delta_update && round % 2 == 1 ? 1.5 : 1.0;
      ++round;
      std::unique_ptr<Cache> caches[2];
      for (int i = 0; i < 2; ++i) {
        if (i == 0) setenv("LITECACHE_SLOT_CODES", "0", /*overwrite=*/1);
        ASSERT_EQ(SlotsKeepCodes(layout, options, "cuda"), i == 1);
        caches[i] = PlanLiteCache(layout, options, nullptr, DeviceType::kCuda)
                        ->Create(machine.compute(), kPlenty);
        unsetenv("LITECACHE_SLOT_CODES");
      }
      QuerySource source(layout, 0.1, random());
      Buffer arenas[2];
      const auto step_of = [&](const std::vector<Part>& parts, const std::string& where) {
        const Step step = MakeStep(*caches[0], parts);
        StepInputs inputs = source.Draw(step);
        std::vector<std::vector<float>> outs[2];
        for (int i = 0; i < 2; ++i) {
          caches[i]->BeginStep(step);
          outs[i] =
              RunLayers(*caches[i], machine.compute(), *stream, step, inputs,
                        1.0f / std::sqrt(static_cast<float>(head_dim)), layout.layers, &arenas[i]);
          caches[i]->EndStep(step);
        }
        // Three roundings by up to 2^-9: of the expanded value and of both probabilities.
        EXPECT_LE(LayersError(outs[0], outs[1]), 0x1p-7)
            << rows << ", head_dim " << head_dim << ", " << where;
      };
      const auto both = [&](const auto& make) {
        const SequenceId id = make(*caches[0]);
        EXPECT_EQ(make(*caches[1]), id);
        return id;
      };
      const SequenceId a = both([](Cache& cache) { return cache.Create(); });
      const SequenceId b = both([](Cache& cache) { return cache.Create(); });
      step_of({{a, 700, false}, {b, 400, false}}, "prompts");
      for (int i = 0; i < 20; ++i) step_of({{a}}, "one sequence, step " + std::to_string(i));
      for (int i = 0; i < 10; ++i) step_of({{a}, {b}}, "two, step " + std::to_string(i));
      const SequenceId c = both([&](Cache& cache) { return cache.Fork(a); });
      for (int i = 0; i < 10; ++i) step_of({{c}, {b}, {a}}, "forked, step " + std::to_string(i));
      step_of({{b, 40, false}, {a}}, "a chunk");
      for (int i = 0; i < 10; ++i) step_of({{b}, {a}}, "after a chunk, step " + std::to_string(i));
      EXPECT_GT(caches[1]->GetStats().lookups, caches[1]->GetStats().hits);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace litecache::kv
