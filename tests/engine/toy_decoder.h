// A decoder small enough to run thousands of steps per second, with real attention over a real
// cache: its logits depend on every earlier token, so that a wrong page, position or fork is
// detected.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "kv/cache.h"
#include "model/decoder.h"

namespace litecache::engine {

class ToyDecoder final : public model::Decoder {
 public:
  static constexpr int64_t kVocab = 97;
  static constexpr int64_t kHeadDim = 16;
  static constexpr int64_t kQHeads = 4;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kLayers = 2;

  // window: tokens that the first layer attends; 0: all. vocab: the first tokens have the same
  // logits in all vocabularies.
  explicit ToyDecoder(int64_t context = 1 << 20, int64_t window = 0, int64_t vocab = kVocab) {
    config_.layers = kLayers;
    config_.q_heads = kQHeads;
    config_.kv_heads = kKvHeads;
    config_.head_dim = kHeadDim;
    config_.hidden = kQHeads * kHeadDim;
    config_.vocab = vocab;
    config_.max_context = context;
    config_.weight_dtype = DType::kF32;
    if (window > 0) {
      config_.window = window;
      config_.windowed = {true, false};
    }
  }

  // Tokens that cause failures.
  int32_t poison = -1;   // a step with this token throws Error after its first layer
  int32_t spoiled = -1;  // rows of this token have NaN logits
  // CapacityError before a step with more rows than this.
  std::atomic<int64_t> most_rows{std::numeric_limits<int64_t>::max()};
  std::chrono::microseconds delay{0};
  // Called for every step that begins.
  std::function<void(const kv::Step&)> on_step;

  const model::ModelConfig& config() const override { return config_; }
  DType kv_dtype() const override { return DType::kF32; }
  uint64_t weight_bytes() const override { return 1000; }
  uint64_t weight_bytes_per_step(int64_t) const override { return 1000; }
  uint64_t WorkspaceBytes(int64_t rows, int64_t) const override {
    return static_cast<uint64_t>(rows) * 4 * kQHeads * kHeadDim * sizeof(float);
  }

  void Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
               std::span<const int32_t> positions, kv::Cache& cache,
               std::span<const int64_t> logit_rows, const MatrixView& logits) override {
    LC_CHECK(static_cast<int64_t>(tokens.size()) == step.rows && positions.size() == tokens.size());
    if (on_step) on_step(step);
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    if (step.rows > most_rows) throw CapacityError("the toy takes {} rows", most_rows.load());
    for (const kv::StepSequence& sequence : step.sequences) {
      for (int64_t row = 0; row < sequence.rows; ++row) {
        LC_CHECK(positions[static_cast<size_t>(sequence.first_row + row)] == sequence.past + row);
      }
    }
    cache.BeginStep(step);
    const auto rows = static_cast<size_t>(step.rows);
    std::vector<float> hidden(rows * kQHeads * kHeadDim);
    for (size_t i = 0; i < hidden.size(); ++i) {
      const size_t row = i / (kQHeads * kHeadDim);
      hidden[i] = Noise(tokens[row], positions[row] % 251, i % (kQHeads * kHeadDim), 1);
    }
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> q(hidden.size()), k(rows * kKvHeads * kHeadDim), v(k.size()),
          out(hidden.size());
      for (size_t row = 0; row < rows; ++row) {
        const float* h = &hidden[row * kQHeads * kHeadDim];
        for (size_t i = 0; i < kQHeads * kHeadDim; ++i) q[row * kQHeads * kHeadDim + i] = 2 * h[i];
        for (size_t i = 0; i < kKvHeads * kHeadDim; ++i) {
          k[row * kKvHeads * kHeadDim + i] = h[2 * i] + h[i];
          v[row * kKvHeads * kHeadDim + i] = h[2 * i + 1] - h[i];
        }
      }
      const auto view = [&](std::vector<float>& x) {
        return MatrixView::Of(x.data(), step.rows, static_cast<int64_t>(x.size() / rows));
      };
      cache.Attend(stream, layer, step, view(q), view(k), view(v), 1.0f, view(out));
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = std::tanh(hidden[i] + 2 * out[i]);
      for (int32_t token : tokens) {
        if (token == poison) throw Error("the toy was poisoned");
      }
    }
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      const auto row = static_cast<size_t>(logit_rows[i]);
      for (int64_t token = 0; token < config_.vocab; ++token) {
        float sum = 0;
        for (size_t d = 0; d < kQHeads * kHeadDim; ++d) {
          sum += hidden[row * kQHeads * kHeadDim + d] * Noise(static_cast<int32_t>(token), 7, d, 2);
        }
        logits.Row<float>(static_cast<int64_t>(i))[token] =
            tokens[row] == spoiled ? std::nanf("") : sum;
      }
    }
    cache.EndStep(step);
  }

 private:
  // A deterministic number in [-1, 1) for its arguments.
  static float Noise(int32_t a, int32_t b, size_t c, uint64_t salt) {
    uint64_t x = salt * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(a) * 0xbf58476d1ce4e5b9ull +
                 static_cast<uint64_t>(b) * 0x94d049bb133111ebull + c * 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return static_cast<float>(static_cast<int64_t>(x) >> 40) * 0x1p-23f;
  }

  model::ModelConfig config_;
};

// A toy decoder with a separate device and cache.
struct ToyRig {
  explicit ToyRig(int64_t blocks = 4096, int threads = 2)
      : device(threads), stream(device.CreateStream()) {
    const kv::Layout layout = decoder.config().kv_layout(DType::kF32);
    const uint64_t block =
        kv::CreateFullCache(device, layout, uint64_t{1} << 30)->BytesFor(1).device;
    cache = kv::CreateFullCache(device, layout, static_cast<uint64_t>(blocks) * block);
  }
  CpuDevice device;
  std::unique_ptr<Stream> stream;
  ToyDecoder decoder;
  std::unique_ptr<kv::Cache> cache;
};

// The simple way to generate: one sequence, its prompt in one step, then token by token. pick
// chooses a token from the logits; generation ends after `count` tokens.
inline std::vector<int32_t> PlainLoop(model::Decoder& decoder, kv::Cache& cache, Stream& stream,
                                      const std::vector<int32_t>& prompt, int64_t count,
                                      const std::function<int32_t(std::span<const float>)>& pick) {
  const kv::SequenceId id = cache.Create();
  std::vector<float> logits(static_cast<size_t>(decoder.config().vocab));
  std::vector<int32_t> input = prompt, answer;
  while (static_cast<int64_t>(answer.size()) < count) {
    const auto rows = static_cast<int64_t>(input.size());
    const kv::Step step{{{id, 0, rows, cache.Length(id)}}, rows};
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < rows; ++i) {
      positions.push_back(static_cast<int32_t>(cache.Length(id) + i));
    }
    decoder.Forward(stream, step, input, positions, cache, std::vector<int64_t>{rows - 1},
                    MatrixView::Of(logits.data(), 1, decoder.config().vocab));
    answer.push_back(pick(logits));
    input = {answer.back()};
  }
  cache.Release(id);
  return answer;
}

}  // namespace litecache::engine
