// Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv:2412.06464): what some layers of hybrid models
// have instead of attention. Each value head keeps a matrix that maps keys to values: a token lets
// it decay, corrects what it gives for the token's key towards the token's value, and reads it with
// the token's query. So a sequence has a state of constant size, and no KV rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

struct GatedDeltaShape {
  int64_t key_heads = 0;    // of queries and keys
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;      // of a head, 1 to kMostDeltaDim
  int64_t value_dim = 0;    // of a head, 1 to kMostDeltaDim
  int64_t taps = 0;         // of the convolution, 1 to kMostDeltaTaps
  // The order of value heads: those of a key head follow one another, or, as GGUF has them, they
  // are key_heads apart.
  bool tiled = false;

  // The key head of a value head.
  int64_t KeyHead(int64_t value_head) const {
    return tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  // Columns of the projection to queries, keys and values, in this order, each head after head.
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t width() const { return value_heads * value_dim; }
  // Floats of a sequence's state: the convolution's last inputs [taps - 1][channels], the newest
  // last, then the heads' matrices S [value_heads][key_dim][value_dim].
  int64_t history_floats() const { return (taps - 1) * channels(); }
  int64_t state_floats() const { return history_floats() + width() * key_dim; }
  bool operator==(const GatedDeltaShape&) const = default;
};
inline constexpr int64_t kMostDeltaDim = 256, kMostDeltaTaps = 8;

// f32, memory of the stream's device.
struct GatedDeltaWeights {
  const float* filter = nullptr;     // [channels][taps], the newest token's tap last
  const float* log_rate = nullptr;   // [value_heads] ("A_log")
  const float* rate_bias = nullptr;  // [value_heads] ("dt_bias")
  const float* norm = nullptr;       // [value_dim]
  float norm_eps = 0;
};

// What the layer's projections give, f32; all but the gate may be overwritten.
struct GatedDeltaInputs {
  MatrixView qkv;   // [T, channels]
  MatrixView gate;  // [T, width] ("z")
  MatrixView rate;  // [T, value_heads] ("a")
  MatrixView step;  // [T, value_heads] ("b")
};

// One sequence's part of a step.
struct GatedDeltaSequence {
  int64_t first_row = 0;   // row of its first new token
  int64_t rows = 0;        // >= 1
  int64_t past = 0;        // tokens before; 0: the state is zero, whatever its memory holds
  float* state = nullptr;  // [state_floats], updated; 16-byte aligned
};

// For each token t of each sequence and each value head, with x = silu(convolution of the
// sequence's qkv over its last `taps` tokens, those before its first being 0):
//   q = x_q / sqrt(|x_q|^2 + 1e-6) / sqrt(key_dim),  k = x_k / sqrt(|x_k|^2 + 1e-6),  v = x_v
//   S <- exp(-exp(log_rate) softplus(rate + rate_bias)) S
//   S <- S + k (sigmoid(step) (v - S^T k))^T
//   out = RmsNorm(S^T q, norm) * silu(gate)
// out [T, width]: f32, or on a GPU also bf16. Sums are f32. A sequence's results depend neither on
// the number of threads nor on the other sequences. Nor do they on how its tokens are divided into
// steps; but on a GPU with bf16 output, unless its stream is batch-invariant, steps with many of
// them are computed by chunks, which begin with the step and round differently (to f16: values of
// magnitudes up to 2^20).
void GatedDelta(Stream& stream, const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                std::span<const GatedDeltaSequence> sequences, const GatedDeltaInputs& in,
                const MatrixView& out);

}  // namespace litecache::ops
