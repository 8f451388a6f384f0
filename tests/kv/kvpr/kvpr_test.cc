// Policy kvpr against attention over every row: keys and values are products of random inputs, and
// the first ones are recomputed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "expect_error.h"
#include "kv/offload/recompute.h"
#include "kv/policy_oracle.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

bool All(int64_t, int64_t) { return true; }

constexpr TierBytes kPlenty{.device = uint64_t{2} << 30, .host = uint64_t{2} << 30};

// Draws inputs, and projects them with random matrices and a rotation by the position; with bf16
// rows, some oracles give a GPU keys and values that are already rounded.
class KvprOracle final : public PolicyOracle, private KeyValueProjection {
 public:
  KvprOracle(const CachePlan& plan, uint64_t seed, const TierBytes& budget = kPlenty,
             const std::string& device = "cpu")
      : PolicyOracle(plan, All, seed, budget, std::nullopt, device) {
    const auto size = static_cast<size_t>(layout_.layers * 2 * width() * layout_.hidden);
    weights_.resize(size);
    const float scale = 1 / std::sqrt(static_cast<float>(layout_.hidden));
    for (float& x : weights_) x = scale * normal_(random_);
    rounds_ = on_gpu() && layout_.dtype == DType::kBF16 && seed % 2 == 0;
  }
  uint64_t projected() const { return projected_; }

 private:
  int64_t width() const { return layout_.kv_heads * layout_.head_dim; }

  void Draw(const kv::Step& step, int64_t layer, LayerInputs* inputs) override {
    for (float& x : inputs->q) x = normal_(random_);
    if (layer == 0) x_.assign(static_cast<size_t>(layout_.layers), {});
    auto& x = x_[static_cast<size_t>(layer)];
    x.resize(static_cast<size_t>(step.rows * layout_.hidden));
    for (float& value : x) {
      // The operands of a bf16 model.
      value = normal_(random_);
      if (layout_.dtype == DType::kBF16) value = static_cast<float>(bf16(value));
    }
    for (const StepSequence& part : step.sequences) {
      std::vector<int32_t> positions(static_cast<size_t>(part.rows));
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(part.past));
      Multiply(layer, x.data() + part.first_row * layout_.hidden, positions,
               inputs->k.data() + part.first_row * width(),
               inputs->v.data() + part.first_row * width());
    }
  }
  void BeforeAttend(const kv::Step& step, int64_t layer) override {
    if (!cache().WantsInputs()) return;
    const std::vector<float>& x = x_[static_cast<size_t>(layer)];
    std::vector<bf16> rounded;
    for (const float value : x) rounded.push_back(bf16(value));
    // A GPU's products read their inputs in the weights' dtype.
    const bool narrow = on_gpu() && layout_.dtype == DType::kBF16;
    const MatrixView view =
        ToDevice(narrow ? static_cast<const void*>(rounded.data()) : x.data(),
                 narrow ? DType::kBF16 : DType::kF32, step.rows, layout_.hidden);
    cache().KeepInputs(stream(), layer, step, view, this);
  }

  void Multiply(int64_t layer, const float* x, std::span<const int32_t> positions, float* k,
                float* v) const {
    for (size_t i = 0; i < positions.size(); ++i) {
      for (int64_t j = 0; j < 2 * width(); ++j) {
        const float* w = weights_.data() + (layer * 2 * width() + j) * layout_.hidden;
        double sum = 0;
        for (int64_t c = 0; c < layout_.hidden; ++c) {
          sum += static_cast<double>(w[c]) *
                 static_cast<double>(x[static_cast<int64_t>(i) * layout_.hidden + c]);
        }
        // A key depends on its position, a value does not.
        const double turned = sum * std::cos(0.1 * static_cast<double>(positions[i]));
        const auto row = static_cast<int64_t>(i) * width();
        (j < width() ? k[row + j] : v[row + j - width()]) =
            static_cast<float>(j < width() ? turned : sum);
      }
    }
  }
  DType rounds_to() const override { return rounds_ ? DType::kBF16 : DType::kF32; }

  void Project(Stream&, int64_t layer, const MatrixView& x, std::span<const int32_t> positions,
               const MatrixView& k, const MatrixView& v) override {
    ASSERT_EQ(positions.size(), static_cast<size_t>(x.rows));
    ASSERT_TRUE(k.dtype == rounds_to() && v.dtype == rounds_to());
    projected_ += positions.size();
    // Copies wait for the work submitted to the streams.
    std::vector<int32_t> at(positions.size());
    device().Download(at.data(), positions.data(), positions.size_bytes());
    const auto count = static_cast<size_t>(x.rows * x.cols);
    std::vector<float> inputs(count), keys(positions.size() * static_cast<size_t>(width()));
    std::vector<float> values(keys.size());
    if (x.dtype == DType::kBF16) {
      std::vector<bf16> narrow(count);
      device().Download(narrow.data(), x.data, count * sizeof(bf16));
      std::ranges::transform(narrow, inputs.begin(), [](bf16 b) { return static_cast<float>(b); });
    } else {
      device().Download(inputs.data(), x.data, count * sizeof(float));
    }
    Multiply(layer, inputs.data(), at, keys.data(), values.data());
    Give(k, keys);
    Give(v, values);
  }
  void Give(const MatrixView& target, const std::vector<float>& values) {
    if (target.dtype == DType::kF32) {
      device().Upload(target.data, values.data(), values.size() * sizeof(float));
      return;
    }
    std::vector<bf16> rounded;
    for (const float value : values) rounded.push_back(bf16(value));
    device().Upload(target.data, rounded.data(), rounded.size() * sizeof(bf16));
  }

  std::vector<float> weights_;         // [layer][K rows, V rows][hidden]
  std::vector<std::vector<float>> x_;  // [layer]
  uint64_t projected_ = 0;
  bool rounds_ = false;
};

KvOptions Options(int64_t split, bool chunked = true, const std::string& rows = "auto") {
  KvOptions options;
  options.policy = "kvpr";
  options.kvpr.split = split;
  options.kvpr.chunked = chunked;
  options.host_rows = rows;
  return options;
}

class KvprLives : public DeviceTest {};

TEST_P(KvprLives, AttendEveryRow) {
  std::mt19937_64 random = testing::TestRandom();
  uint64_t projected = 0;
  for (int round = 0; round < 20 && !::testing::Test::HasFailure(); ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
    const int64_t group = Pick<int64_t>(random, {1, 1, 3});
    const int64_t head_dim = Pick<int64_t>(random, {8, 16, 24});
    const Layout layout{.layers = 1 + static_cast<int64_t>(random() % 3),
                        .q_heads = kv_heads * group,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .dtype = Pick(random, {DType::kF32, DType::kBF16}),
                        .hidden = Pick<int64_t>(random, {2, 18, kv_heads * head_dim})};
    const int64_t split = Pick<int64_t>(random, {-1, 0, 1, 40, 255, 256, 257, 1 << 20});
    const bool chunked = random() % 2 == 0;
    KvOptions options = Options(split, chunked);
    options.batch_groups = Pick<int64_t>(random, {1, 1, 2, 3, 8});
    SCOPED_TRACE(::testing::Message()
                 << "groups " << options.batch_groups << " split " << split << " chunked "
                 << chunked << " KV heads " << kv_heads << " group " << group << " head_dim "
                 << layout.head_dim << " hidden " << layout.hidden);
    const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
    KvprOracle oracle(*plan, random(), kPlenty, device());
    oracle.RunLife(25, Pick<int64_t>(random, {20, 90, 300}));
    projected += oracle.projected();
  }
  EXPECT_GT(projected, 1000u);
}

// As FlexGenLives.StepsLikeTheLastOne: rows of the next step are recomputed while the last one
// ends.
TEST_P(KvprLives, StepsLikeTheLastOne) {
  std::mt19937_64 random = testing::TestRandom();
  for (int64_t layers = 1; layers <= 5; ++layers) {
    for (const int64_t split : {1, 40, 1 << 20}) {
      SCOPED_TRACE(::testing::Message() << layers << " layers, split " << split);
      const Layout layout{.layers = layers,
                          .q_heads = 2,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .dtype = DType::kBF16,
                          .hidden = 32};
      KvOptions options = Options(split, /*chunked=*/random() % 2 == 0);
      options.batch_groups = Pick<int64_t>(random, {1, 2});
      const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
      KvprOracle oracle(*plan, random(), kPlenty, device());
      std::vector<Part> parts;
      for (const int64_t tokens : {70, 33, 15}) {
        parts.push_back({oracle.Create(), 1, true});
        oracle.Step({{parts.back().id, tokens, false}});
      }
      for (int step = 0; step < 20; ++step) oracle.Step(parts);
    }
  }
}

TEST_P(KvprLives, TrafficOfEverySplit) {
  const Layout layout{.layers = 2,
                      .q_heads = 4,
                      .kv_heads = 4,
                      .head_dim = 16,
                      .dtype = DType::kBF16,
                      .hidden = 64};
  const int64_t past = 600;
  for (const int64_t split : {int64_t{0}, int64_t{1}, past / 2, past}) {
    for (const bool chunked : {false, true}) {
      const auto plan = MakeCachePlan(layout, Options(split, chunked), nullptr, device_type());
      KvprOracle oracle(*plan, testing::TestSeed(), plan->BytesFor(past + 1), device());
      const SequenceId id = oracle.Create();
      oracle.Step({{id, past, false}});
      oracle.Step({{id, 1, true}});
      const Stats stats = oracle.cache().GetStats();
      const auto l = static_cast<uint64_t>(split), rest = static_cast<uint64_t>(past - split);
      EXPECT_EQ(stats.stream.rows, rest * 4 * 2);
      EXPECT_EQ(stats.stream.bytes, rest * 4 * 2 * 64);
      // On a GPU, layer 0's inputs stay on the device, where they are needed.
      const uint64_t travelling = device_type() == DeviceType::kCuda ? 1 : 2;
      EXPECT_EQ(stats.activations.rows, l * travelling);
      EXPECT_EQ(stats.activations.bytes, l * travelling * 128);
      EXPECT_EQ(stats.rows_recomputed, l * 4 * 2);
      // A GPU also multiplies padding rows after them.
      const uint64_t unit = device_type() == DeviceType::kCuda ? offload::kGpuRecomputeUnit : 1;
      EXPECT_EQ(oracle.projected(), (l + unit - 1) / unit * unit * 2);
      EXPECT_EQ(stats.peak, plan->BytesFor(past + 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, KvprLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(KvprTest, SaysWhenRecomputingGainsNothing) {
  Layout layout{.layers = 1, .q_heads = 8, .kv_heads = 2, .head_dim = 16, .hidden = 128};
  for (const DeviceType type : {DeviceType::kCuda, DeviceType::kCpu}) {
    const auto warning = MakeCachePlan(layout, Options(-1), nullptr, type)->Warning();
    EXPECT_NE(warning.find("l = 0"), std::string::npos) << warning;
    EXPECT_NE(warning.find("256 B"), std::string::npos) << warning;
    EXPECT_EQ(MakeCachePlan(layout, Options(0), nullptr, type)->Warning(), "");
    EXPECT_EQ(MakeCachePlan(layout, Options(5), nullptr, type)->Warning(), "");
  }
  const auto plan = MakeCachePlan(layout, Options(-1), nullptr);
  CpuDevice device(1);
  EXPECT_FALSE(plan->Create(device, kPlenty)->WantsInputs());
  // Multi-head: inputs are half the size of the rows they produce; 4-bit rows are smaller than
  // both.
  layout.kv_heads = 8;
  EXPECT_EQ(MakeCachePlan(layout, Options(-1), nullptr)->Warning(), "");
  EXPECT_TRUE(MakeCachePlan(layout, Options(-1), nullptr)->Create(device, kPlenty)->WantsInputs());
  EXPECT_FALSE(MakeCachePlan(layout, Options(-1, true, "int4"), nullptr)
                   ->Create(device, kPlenty)
                   ->WantsInputs());
}

TEST(KvprTest, ImportedBlocksCanBeShared) {
  const Layout layout{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 16, .hidden = 32};
  CpuDevice device(1);
  for (const int split : {0, 5}) {
    const auto cache = MakeCachePlan(layout, Options(split), nullptr)->Create(device, kPlenty);
    const SequenceId id = cache->Create();
    const std::vector<std::byte> block(cache->BlockBytes());
    for (int i = 0; i < 2; ++i) cache->ImportBlock(id, block);
    const SequenceId fork = cache->ForkPrefix(id, 2 * kBlockTokens);
    EXPECT_EQ(cache->Length(fork), 2 * kBlockTokens);
    for (const SequenceId sequence : {fork, id}) cache->Release(sequence);
    EXPECT_EQ(cache->GetStats().used, TierBytes{});
  }
}

TEST(KvprTest, ErrorsNameTheCause) {
  Layout layout{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 16, .hidden = 0};
  EXPECT_ERROR(MakeCachePlan(layout, Options(5), nullptr), InvalidArgument, "kvpr", "inputs");
  layout.hidden = 33;
  EXPECT_ERROR(MakeCachePlan(layout, Options(5), nullptr), InvalidArgument, "33");
  layout.hidden = 32;
  EXPECT_ERROR(MakeCachePlan(layout, Options(-2), nullptr), InvalidArgument, "kvpr.split", "-2");
  // Attend() without KeepInputs().
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  const auto cache = MakeCachePlan(layout, Options(5), nullptr)->Create(device, kPlenty);
  const SequenceId id = cache->Create();
  const Step step{{{id, 0, 1, 0, false}}, 1, 0};
  cache->BeginStep(step);
  std::vector<float> values(32);
  const auto view = MatrixView::Of(values.data(), 1, 32);
  EXPECT_ERROR(cache->Attend(*stream, 0, step, view, view, view, 1, view), InvalidArgument,
               "KeepInputs");
}

}  // namespace
}  // namespace litecache::kv
