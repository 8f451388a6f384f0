#include "model/delta_block.h"

#include <initializer_list>

#include "ops/linear/linear.h"

namespace litecache::model {

DeltaBlock TakeDelta(WeightStore& weights, const ops::GatedDeltaShape& shape, int64_t hidden,
                     float norm_eps, int64_t layer, const std::string& name) {
  const LayerPlace place{layer, LayerPart::kQuery};
  const auto matrix = [&](const char* part, int64_t rows) {
    return weights.LayerMatrix(place, name + part + ".weight", rows, hidden);
  };
  DeltaBlock block;
  block.qkv = matrix("in_proj_qkv", shape.channels());
  block.gate = matrix("in_proj_z", shape.width());
  block.rate = matrix("in_proj_a", shape.value_heads);
  block.step = matrix("in_proj_b", shape.value_heads);
  block.weights = {.filter = weights.Bias(name + "conv1d.weight", shape.channels() * shape.taps),
                   .log_rate = weights.Bias(name + "A_log", shape.value_heads),
                   .rate_bias = weights.Bias(name + "dt_bias", shape.value_heads),
                   .norm = weights.NormWeight(name + "norm.weight", shape.value_dim, 0),
                   .norm_eps = norm_eps};
  return block;
}

DeltaActivations PlaceDelta(Arena& arena, const ops::GatedDeltaShape& shape, DType product,
                            int64_t rows, bool on_gpu) {
  DeltaActivations a;
  a.inputs.qkv = arena.Take(rows, shape.channels());
  a.inputs.gate = arena.Take(rows, shape.width());
  a.inputs.rate = arena.Take(rows, shape.value_heads);
  a.inputs.step = arena.Take(rows, shape.value_heads);
  if (on_gpu) a.convolved = arena.Take(rows, shape.channels());
  a.out = arena.Take(rows, shape.width(), product);
  return a;
}

void RunDelta(Stream& stream, int64_t layer, const kv::Step& step, const DeltaBlock& block,
              const MatrixView& h, kv::Cache& cache, const DeltaActivations& a) {
  const std::initializer_list<ops::LinearPart> parts = {{.weight = block.qkv, .y = a.inputs.qkv},
                                                        {.weight = block.gate, .y = a.inputs.gate},
                                                        {.weight = block.rate, .y = a.inputs.rate},
                                                        {.weight = block.step, .y = a.inputs.step}};
  ops::Linear(stream, h, parts);
  cache.Recur(stream, layer, step, block.weights, a.inputs, a.convolved, a.out);
}

}  // namespace litecache::model
