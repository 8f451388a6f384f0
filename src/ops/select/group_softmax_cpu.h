// Combines the scores of a group's query heads: a softmax for each head, summed over the heads.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// Candidates are processed in pieces; a piece's scores become exponentials relative to its own
// maximum, so that no pass over all candidates has to finish first.
struct SoftmaxPart {
  float maximum;  // of scale * score * log2 e
  float sum;      // of the exponentials
};

// x[i] = exp(scale * x[i]) / 2^part.maximum, i < n, n >= 1; at least 2^-126.
SoftmaxPart SoftmaxPiece(float* x, int64_t n, float scale);

// factors[p][j] converts piece p's exponentials of head j to probabilities. parts [pieces][heads].
void SoftmaxFactors(const SoftmaxPart* parts, int64_t pieces, int64_t heads, float* factors);

// out[i] = sum over j of factors[j] * x[j * stride + i], i < n; out may be x.
void SumHeads(const float* x, int64_t stride, int64_t heads, const float* factors, int64_t n,
              float* out);

}  // namespace litecache::ops::cpu
