// The Gated DeltaNet of a recurrent layer (ops/recurrence/gated_delta.h): its weights, and its
// operations.
#pragma once

#include <cstdint>
#include <string>

#include "kv/cache.h"
#include "model/arena.h"
#include "model/weights.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::model {

struct DeltaBlock {
  MatrixView qkv, gate, rate, step;  // of the input; without biases
  ops::GatedDeltaWeights weights;
};

// name: "model.layers.0.linear_attn.".
DeltaBlock TakeDelta(WeightStore& weights, const ops::GatedDeltaShape& shape, int64_t hidden,
                     float norm_eps, int64_t layer, const std::string& name);

struct DeltaActivations {
  ops::GatedDeltaInputs inputs;
  MatrixView convolved;  // [T, channels] f32, on a GPU
  MatrixView out;        // [T, width] in the products' dtype: what the output projection takes
};
DeltaActivations PlaceDelta(Arena& arena, const ops::GatedDeltaShape& shape, DType product,
                            int64_t rows, bool on_gpu);

// h [T, hidden]: the layer's input, normed, in the products' dtype -> a.out.
void RunDelta(Stream& stream, int64_t layer, const kv::Step& step, const DeltaBlock& block,
              const MatrixView& h, kv::Cache& cache, const DeltaActivations& a);

}  // namespace litecache::model
