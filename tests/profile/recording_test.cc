// Compares a recording made in chunks with the rows that a cache receives when tokens are decoded
// one by one.
#include "profile/recording.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kv/forwarding_cache.h"
#include "small_model.h"
#include "test_seed.h"

namespace litecache::profile {
namespace {

using testing::RandomTokens;
using testing::SmallConfig;

// Records all inputs layer by layer, one row per token.
class Witness final : public kv::ForwardingCache {
 public:
  Witness(kv::Cache& full, int64_t layers)
      : kv::ForwardingCache(full), q(Rows(layers)), k(q), ahead(q) {}
  int64_t PredictionSource(int64_t layer) const override { return layer - distance; }
  void Prefetch(Stream&, int64_t layer, const kv::Step&, const MatrixView& x, float) override {
    Append(x, &ahead[static_cast<size_t>(layer)]);
  }
  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& x,
              const MatrixView& key, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    Append(x, &q[static_cast<size_t>(layer)]);
    Append(key, &k[static_cast<size_t>(layer)]);
    last_scale = softmax.scale;
    inner().Attend(stream, layer, step, x, key, v, softmax, out);
  }

  using Rows = std::vector<std::vector<float>>;
  Rows q, k, ahead;  // [layers][tokens * width]
  float last_scale = 0;
  int64_t distance = 1;

 private:
  static void Append(const MatrixView& x, std::vector<float>* out) {
    for (int64_t row = 0; row < x.rows; ++row) {
      out->insert(out->end(), x.Row<float>(row), x.Row<float>(row) + x.cols);
    }
  }
};

TEST(RecordingTest, ChunksSeeWhatSingleStepsSee) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  for (const char* shape : {"llama3.2-1b", "opt-125m", "qwen3-8b"}) {
    const model::ModelConfig config = SmallConfig(shape);
    const auto decoder = model::RandomDecoder(device, config, random(), {.dtype = DType::kF32});
    const kv::Layout layout = config.kv_layout(decoder->kv_dtype());
    const int64_t n = 61, steps = 23;
    const auto tokens = RandomTokens(random, n, 211);

    RecordingOptions options;
    options.steps = steps;
    options.chunk = 7;
    options.distances = 2;
    options.others = {0, 5, 6, 30};
    int64_t last = 0;
    const Recording r = Record(device, *stream, *decoder, tokens, options, [&](int64_t done) {
      EXPECT_GT(done, last);
      last = done;
    });
    EXPECT_EQ(last, n);
    ASSERT_EQ(r.positions.size(), 4u + steps);
    EXPECT_EQ(r.first_step(), 4);

    const auto full = kv::CreateFullCache(device, layout, uint64_t{64} << 20);
    Witness witness(*full, layout.layers), farther(*full, layout.layers);
    farther.distance = 2;
    for (Witness* cache : {&witness, &farther}) {
      const kv::SequenceId id = cache->Create();
      for (int32_t p = 0; p < n; ++p) {
        kv::Step step;
        step.sequences = {{id, 0, 1, p, true}};
        step.rows = step.decode_rows = 1;
        decoder->Forward(*stream, step, std::span(tokens).subspan(static_cast<size_t>(p), 1),
                         std::vector<int32_t>{p}, *cache, {}, {});
      }
    }
    EXPECT_EQ(r.scale, witness.last_scale);
    // All values are f32; a chunk's products are added in another order.
    double error = 0, size = 0;
    const auto compare = [&](const float* a, const float* b, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const double off = std::abs(double{a[i]} - double{b[i]});
        error = std::isnan(off) ? HUGE_VAL : std::max(error, off);
        size = std::max(size, std::abs(double{b[i]}));
      }
    };
    const int64_t d = layout.head_dim, q_width = layout.q_heads * d, kv_width = layout.kv_heads * d;
    for (int64_t layer = 0; layer < layout.layers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      for (int64_t head = 0; head < layout.kv_heads; ++head) {
        for (int64_t p = 0; p < n; ++p) {
          compare(r.Keys(layer, head) + p * d, witness.k[l].data() + p * kv_width + head * d, d);
        }
      }
      for (size_t i = 0; i < r.positions.size(); ++i) {
        compare(r.Query(layer, static_cast<int64_t>(i), 0),
                witness.q[l].data() + r.positions[i] * q_width, q_width);
      }
      for (int64_t distance = 1; distance <= std::min<int64_t>(layer, 2); ++distance) {
        const Witness& of = distance == 1 ? witness : farther;
        for (int64_t t = 0; t < steps; ++t) {
          compare(r.Predicted(distance, layer, t, 0),
                  of.ahead[l].data() + (n - steps + t) * q_width, q_width);
        }
      }
      const int64_t group = layout.q_heads / layout.kv_heads;
      const auto last_group = r.StepQueries(layer, layout.kv_heads - 1, 0);
      ASSERT_EQ(static_cast<int64_t>(last_group.size()), steps * group * d);
      compare(last_group.data() + (steps - 1) * group * d,
              witness.q[l].data() + (n - 1) * q_width + (layout.q_heads - group) * d, group * d);
    }
    EXPECT_GT(size, 0.01) << shape;
    EXPECT_LT(error, 2e-5 * size) << shape;
  }
}

}  // namespace
}  // namespace litecache::profile
