// Attention over a given set of earlier tokens, in double precision with plain loops, compared with
// a cache of any policy whose set does not depend on the queries: random runs of several sequences
// through both, with every output compared.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/device_test.h"
#include "kv/random_life.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// The inputs of one layer in a step, [rows][columns].
struct LayerInputs {
  std::vector<float> q, k, v;
};

class PolicyOracle {
 public:
  // Whether one token attends another, seen <= token, in layers without a window.
  using Sees = std::function<bool(int64_t token, int64_t seen)>;

  // Compares with a cache of `plan`. stored: format of rows from earlier steps; those of the step
  // itself are attended in the layout's dtype. device: the device of the plan.
  PolicyOracle(const CachePlan& plan, Sees sees, uint64_t seed, const TierBytes& budget,
               std::optional<ops::RowEncoding> stored = std::nullopt,
               const std::string& device = "cpu");
  virtual ~PolicyOracle() = default;

  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  SequenceId ForkPrefix(SequenceId parent);  // all of the parent's prefix
  void Release(SequenceId id);
  // Takes back the last `tokens` tokens.
  void TakeBack(SequenceId id, int64_t tokens);
  // The most tokens that can be taken back.
  int64_t Removable(SequenceId id) const;

  // Runs a step and compares it. fail_after >= 0: first makes an attempt that fails after that many
  // layers.
  void Step(const std::vector<Part>& parts, int64_t fail_after = -1);
  // Prompts in chunks, decoding, further prompts, forks, releases, repeated steps, and drafts where
  // the cache can take back tokens.
  void RunLife(int steps, int64_t longest_prompt);

  // Caps scores (ops::Softmax).
  void Cap(float cap) { cap_ = cap; }
  Cache& cache() { return *cache_; }
  Stream& stream() { return *stream_; }

 protected:
  // Fills q, k and v, which have their sizes already.
  virtual void Draw(const kv::Step& step, int64_t layer, LayerInputs* inputs);
  // Called before a layer's attention.
  virtual void BeforeAttend(const kv::Step& step, int64_t layer) {}
  Device& device() { return machine_.compute(); }
  bool on_gpu() { return device().type() == DeviceType::kCuda; }
  // A copy in the device's memory, kept until the layer has run.
  MatrixView ToDevice(const void* values, DType dtype, int64_t rows, int64_t cols) {
    return layer_inputs_.Copy(values, dtype, rows, cols);
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  Layout layout_;

 private:
  using Rows = std::vector<std::vector<double>>;  // [token][kv_heads * head_dim]
  struct Sequence {
    int64_t length = 0;
    std::vector<Rows> k, v;  // [layer]
  };
  // The heads of a layer.
  int64_t HeadDim(int64_t layer) const;
  int64_t KvHeads(int64_t layer) const;
  bool HasWindow(int64_t layer) const {
    return !layout_.windowed.empty() && layout_.windowed[static_cast<size_t>(layer)];
  }
  std::vector<double> RoundRow(int64_t layer, const float* x,
                               std::optional<ops::RowEncoding> stored) const;
  void Layers(const kv::Step& step, std::vector<LayerInputs>& inputs, int64_t layers,
              std::vector<std::vector<float>>* outs);
  void Compare(const kv::Step& step, int64_t layer, const LayerInputs& inputs,
               const std::vector<float>& out);
  void CheckMemory();

  Sees sees_;
  std::optional<ops::RowEncoding> stored_;
  float scale_, cap_ = 0;
  Machine machine_;
  DeviceInputs layer_inputs_{machine_.compute()};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Cache> cache_;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace litecache::kv
