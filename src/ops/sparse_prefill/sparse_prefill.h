// Sparse attention of prompts: estimates how much of its attention each block of queries gives to
// each block of rows, and keeps the blocks that together have a wanted share.
//
// The estimate is that of XAttention (Xu et al., 2025, section 3.1): the scores on every 16th
// antidiagonal of the matrix of scores, a sixteenth of the products. 16 consecutive queries and 16
// rows share the mean of the 16 scores q_s k_(15-s), s = 0 .. 15, on the antidiagonal of their
// square: it crosses every vertical and every diagonal stripe. At the ends of chunk and context the
// mean is that of the scores that exist, and a square without any has no share. The softmax over
// these means, summed over the squares of a pair of blocks, is the pair's estimated share of the
// attention. A cap of scores caps their means. Blocks are then kept by share, largest first, until
// their sum reaches `mass`.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/kept_blocks.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::ops {

inline constexpr int64_t kSparseStride = 16;  // queries and rows of a square

// Chosen blocks on the CPU.
struct ChosenBlocks {
  KeptBlocks kept;
  std::vector<uint32_t> bits;
};

// Chooses the blocks of one sequence's chunk for all query heads. The sequence's pages hold the
// rows of the new tokens already. q as Attention() takes it; softmax: without regard to sinks.
// whole_end: the last block of queries keeps all rows (the end of a prompt). On a CPU stream.
void ChooseBlocks(Stream& stream, const KvGeometry& geometry, const KvSequence& sequence,
                  const MatrixView& q, int64_t q_heads, const Softmax& softmax, double mass,
                  bool whole_end, ChosenBlocks* out);

// Bytes of scratch that ChooseBlocks takes for a chunk of `rows` tokens that ends a context of
// `context`.
uint64_t SparsePrefillScratchBytes(const KvGeometry& geometry, int64_t q_heads, int64_t rows,
                                   int64_t context);

}  // namespace litecache::ops
