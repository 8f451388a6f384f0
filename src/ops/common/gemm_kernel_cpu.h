// The micro-kernel that Linear and Attention share.
//
// Lanes hold tokens (or queries): a panel packs `vectors` vectors of them, element after element of
// the depth, and the other operand is read row by row in its own layout, with one broadcast per
// element. So weights [out, in] and KV rows are never repacked; only the small operand is. Every
// output is one chain of sums over the depth in ascending order, whatever its tile, block or
// thread, so results do not depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace litecache::ops::cpu {

struct GemmKernel {
  int64_t lanes = 0;        // tokens in a vector
  int64_t max_vectors = 0;  // vectors in the widest panel
  // Elements of the depth processed in a step: 1 (f32) or 2 (pairs of bf16)
  int64_t step = 0;

  // Packs x[r * stride + i], r < rows <= vectors * lanes, i < depth, into a panel [ceil(depth /
  // step)][vectors * lanes] of 32-bit lanes; missing rows and elements are zero. round_to_bf16:
  // makes an f32 kernel agree with a bf16 one.
  void (*pack)(const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t vectors,
               bool round_to_bf16, void* panel) = nullptr;

  // sums[r][lane] (= or +=) sum over i < depth of panel[i][lane] * b(r, i), r < rows. Step s of row
  // r is at b + r * row_bytes + s * step_bytes: an f32, or two bf16 (for an odd depth the second
  // one of the last step is neither read nor used).
  void (*multiply)(const void* panel, int64_t vectors, int64_t depth, const void* b,
                   int64_t row_bytes, int64_t step_bytes, int64_t rows, bool accumulate,
                   float* sums) = nullptr;

  // y[t][i] (= or +=) sums[i][t] + bias[i], t < tokens <= width, i < n; bias may be null.
  void (*store)(const float* sums, int64_t width, int64_t tokens, int64_t n, const float* bias,
                bool add, float* y, int64_t stride) = nullptr;

  int64_t max_width() const { return lanes * max_vectors; }
  int64_t Steps(int64_t depth) const { return (depth + step - 1) / step; }
};

// The kernel for panels and rows of f32, with the active vector instructions.
GemmKernel F32GemmKernel();

// The kernel for rows of bf16 with the active vector instructions, if there is one; otherwise rows
// are widened for the f32 kernel.
std::optional<GemmKernel> Bf16GemmKernel();

}  // namespace litecache::ops::cpu
