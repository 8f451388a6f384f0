#include "bench/synthetic_states.h"

#include <algorithm>

namespace litecache::bench {

SyntheticStates::SyntheticStates(Device& device, const ops::GatedDeltaShape& shape, int64_t rows,
                                 uint64_t seed)
    : shape_(shape),
      // Also for the weights, which are one row.
      values_(device, DType::kF32, std::max(rows, shape.taps), shape.channels(), seed),
      convolved_(device, DType::kF32, rows, shape.channels(), seed),
      out_(device, DType::kF32, rows, shape.width(), seed) {
  const auto vector = [&](int64_t n) { return values_.Next(1, n).Row<const float>(0); };
  weights_ = {.filter = values_.Next(shape.taps, shape.channels()).Row<const float>(0),
              .log_rate = vector(shape.value_heads),
              .rate_bias = vector(shape.value_heads),
              .norm = vector(shape.value_dim),
              .norm_eps = 1e-6f};
}

void SyntheticStates::Update(Stream& stream, int64_t layer, const kv::Step& step,
                             kv::Cache& cache) {
  const ops::GatedDeltaInputs inputs = {.qkv = values_.Next(step.rows, shape_.channels()),
                                        .gate = values_.Next(step.rows, shape_.width()),
                                        .rate = values_.Next(step.rows, shape_.value_heads),
                                        .step = values_.Next(step.rows, shape_.value_heads)};
  cache.Recur(stream, layer, step, weights_, inputs, convolved_.Next(step.rows, shape_.channels()),
              out_.Next(step.rows, shape_.width()));
}

}  // namespace litecache::bench
