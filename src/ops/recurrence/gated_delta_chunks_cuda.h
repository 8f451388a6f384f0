// The update of Gated DeltaNet's states by chunks of tokens rather than token by token: matrix
// products for tensor cores (Yang et al., Parallelizing Linear Transformers with the Delta Rule
// over Sequence Length, arXiv:2406.06484; with decays: Gated DeltaNet, arXiv:2412.06464).
//
// For a head and C tokens with keys K [C, key_dim], queries Q, values V [C, value_dim], steps b_t
// and g_t the logarithm of the decay from the chunk's beginning through token t, and S before them:
//   A[t, s] = b_t (k_t . k_s) exp(g_t - g_s) for s < t, otherwise 0
//   R = diag(b) (V - diag(exp g) K S)
//   D = (I + A)^-1 R, the tokens' corrections of S
//   out = diag(exp g) Q S + P D with P[t, s] = (q_t . k_s) exp(g_t - g_s) for s <= t, otherwise 0
//   S <- exp(g_C) S + (diag(exp(g_C - g)) K)^T D
// (I + A)^-1 and P do not depend on S, and are made for all chunks at once; the rest is one chunk
// after the other. The papers have the inverse's products with V and K instead, four times as large
// as it, and subtract those with S from one another. Here what is subtracted first becomes small
// before anything of it is rounded.
//
// Sums, S and the inverse are f32; operands of products are f16, which is eight times as accurate
// as bf16: keys, queries, P and the inverse are at most 1, and values are scaled (kValueScale).
// Emulated with independent and correlated keys (up to 0.95), and decays of exp(-1e-4) to exp(-2),
// outputs and states are off by up to 1e-3 of their norm; with bf16 by up to 8e-3.
#pragma once

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "ops/recurrence/gated_delta.h"
#include "ops/recurrence/gated_delta_parts.cuh"

namespace litecache::ops::cuda {

// Whether there are kernels for this shape, whose scratch is in the rows of `qkv`.
bool CanUpdateByChunks(const GatedDeltaShape& shape, const MatrixView& qkv,
                       const MatrixView& convolved);

// Updates the states of sequences with at least a.chunked_rows rows. Outputs take their values'
// place in a.convolved.
void UpdateByChunks(CudaStream& stream, const DeltaArguments& a);

}  // namespace litecache::ops::cuda
