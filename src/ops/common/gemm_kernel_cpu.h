// The micro-kernel that Linear and Attention share.
//
// Lanes hold tokens (or queries): a panel packs `vectors` vectors of them, element after element of
// the depth, and the other operand is read row by row as it lies in memory, one broadcast an
// element. So weights [out, in] and KV rows are never repacked; what is packed is the small side.
// Every output is one chain of sums over the depth in rising order, whatever the tile, block or
// thread it falls into: results do not depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace litecache::ops::cpu {

struct GemmKernel {
  int64_t lanes = 0;        // tokens a vector
  int64_t max_vectors = 0;  // vectors in the widest panel
  int64_t step = 0;         // elements of the depth a step takes: 1 (f32) or 2 (pairs of bf16)

  // Packs x[r * stride + i], r < rows <= vectors * lanes, i < depth, into a panel
  // [ceil(depth / step)][vectors * lanes] of 32-bit lanes; missing rows and elements are zero.
  // round_to_bf16: what an f32 kernel needs to agree with a bf16 one.
  void (*pack)(const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t vectors,
               bool round_to_bf16, void* panel) = nullptr;

  // sums[r][lane] (= or +=) sum over i < depth of panel[i][lane] * b(r, i), r < rows. Step s of row
  // r lies at b + r * row_bytes + s * step_bytes: an f32, or two bf16 (for an odd depth the last
  // step's second is neither read nor used).
  void (*multiply)(const void* panel, int64_t vectors, int64_t depth, const void* b,
                   int64_t row_bytes, int64_t step_bytes, int64_t rows, bool accumulate,
                   float* sums) = nullptr;

  // y[t][i] (= or +=) sums[i][t] + bias[i], t < tokens <= width, i < n; bias may be null.
  void (*store)(const float* sums, int64_t width, int64_t tokens, int64_t n, const float* bias,
                bool add, float* y, int64_t stride) = nullptr;

  int64_t max_width() const { return lanes * max_vectors; }
  int64_t Steps(int64_t depth) const { return (depth + step - 1) / step; }
};

// Panels and rows of f32, on the active vector instructions.
GemmKernel F32GemmKernel();

// The active vector instructions' kernel for rows of bf16, if they have one: otherwise rows are
// widened and go through the f32 kernel.
std::optional<GemmKernel> Bf16GemmKernel();

}  // namespace litecache::ops::cpu
