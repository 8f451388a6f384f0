// The checks of arguments that gated_delta.h's implementations share.
#pragma once

#include "base/error.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::ops {

inline void CheckGatedDelta(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                            const GatedDeltaInputs& in, const MatrixView& out) {
  LC_CHECK(shape.key_heads >= 1 && shape.value_heads >= 1 &&
               shape.value_heads % shape.key_heads == 0 && shape.key_dim >= 1 &&
               shape.key_dim <= kMostDeltaDim && shape.value_dim >= 1 &&
               shape.value_dim <= kMostDeltaDim && shape.taps >= 1 && shape.taps <= kMostDeltaTaps,
           "{} key heads of {}, {} value heads of {}, {} taps", shape.key_heads, shape.key_dim,
           shape.value_heads, shape.value_dim, shape.taps);
  LC_CHECK(weights.filter != nullptr && weights.log_rate != nullptr &&
           weights.rate_bias != nullptr && weights.norm != nullptr);
  for (const MatrixView& m : {in.qkv, in.gate, in.rate, in.step}) {
    LC_CHECK(m.dtype == DType::kF32 && m.rows == out.rows, "{} rows, {} of the output", m.rows,
             out.rows);
  }
  LC_CHECK(in.qkv.cols == shape.channels() && in.gate.cols == shape.width() &&
               in.rate.cols == shape.value_heads && in.step.cols == shape.value_heads &&
               out.cols == shape.width(),
           "qkv {}, gate {}, rate {}, step {}, out {} columns", in.qkv.cols, in.gate.cols,
           in.rate.cols, in.step.cols, out.cols);
}

}  // namespace litecache::ops
