// Sparse attention of prompts in double precision, for its tests on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/ops_testing.h"
#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::ops {

// What one query head of a chunk reads: f32, with the values that the rows have in their dtype.
struct SparseHead {
  MatrixView k, v;  // [past + rows][head_dim]
  MatrixView q;     // [rows][head_dim]
  int64_t past;
  float scale;
  DType dtype;  // of the rows
  int64_t query_rows = 128;
  float cap = 0;  // Softmax::cap

  int64_t rows() const { return q.rows; }
  int64_t query_blocks() const { return (q.rows + query_rows - 1) / query_rows; }
  // Tokens of a block of queries: [first, end) in the chunk.
  int64_t First(int64_t query_block) const { return query_block * query_rows; }
  int64_t End(int64_t query_block) const { return std::min(First(query_block + 1), rows()); }
  // Blocks of rows that some query of the block sees.
  int64_t Visible(int64_t query_block) const {
    return (past + End(query_block) - 1) / KeptBlocks::kRows + 1;
  }
  bool Forced(int64_t query_block, int64_t block) const {
    return block == 0 || block >= (past + First(query_block)) / KeptBlocks::kRows;
  }
  // Errors do not grow: the slope is at most 1.
  double Capped(double score) const { return cap == 0 ? score : cap * std::tanh(score / cap); }
  // Relative error of a product's operands: bf16 rows round q too.
  double unit() const { return std::ldexp(1.0, dtype == DType::kBF16 ? -9 : -22); }
  // A bound for the error of a score that is a sum of `products`: those of many products with
  // random signs average out, to 6 standard deviations.
  double ScoreError(double magnitude, double products) const {
    return unit() * (std::min(magnitude, 6 * magnitude / std::sqrt(products)) + 1e-3) * 2;
  }
};

inline bool IsKept(const KeptBlocks& kept, int64_t q_head, int64_t query_block, int64_t block) {
  return (kept.Of(q_head, query_block)[block / 32] >> block % 32 & 1) != 0;
}

// Random blocks of all query heads, each kept with a probability, besides those always kept.
inline ChosenBlocks RandomBlocks(Random& random, const SparseHead& any, int64_t q_heads,
                                 double probability) {
  ChosenBlocks out;
  const int64_t blocks = any.Visible(any.query_blocks() - 1);
  out.kept = {.query_rows = static_cast<int32_t>(any.query_rows),
              .query_blocks = static_cast<int32_t>(any.query_blocks()),
              .words = static_cast<int32_t>((blocks + 31) / 32)};
  out.bits.resize(static_cast<size_t>(q_heads * any.query_blocks() * out.kept.words));
  auto* bits = out.bits.data();
  for (int64_t i = 0; i < q_heads * any.query_blocks(); ++i, bits += out.kept.words) {
    const int64_t query_block = i % any.query_blocks();
    for (int64_t b = 0; b < any.Visible(query_block); ++b) {
      const auto chance = static_cast<double>(random.Integer(0, 9999)) / 10000;
      if (any.Forced(query_block, b) || chance < probability) bits[b / 32] |= 1u << b % 32;
    }
  }
  out.kept.bits = out.bits.data();
  return out;
}

// The estimated shares of the blocks that a block of queries sees.
struct BlockShares {
  std::vector<double> shares;
  double error = 0;  // bound for the error of the sum of any of them
};

inline BlockShares EstimateSharesOf(const SparseHead& head, int64_t query_block) {
  const int64_t stride = kSparseStride, d = head.q.cols;
  BlockShares result;
  result.shares.resize(static_cast<size_t>(head.Visible(query_block)));
  const int64_t squares = (head.End(query_block) - head.First(query_block) + stride - 1) / stride;
  double worst = 0;
  for (int64_t square = 0; square < squares; ++square) {
    const int64_t first = head.First(query_block) + square * stride;
    const int64_t last = head.past + std::min(first + stride, head.rows()) - 1;  // token
    std::vector<double> weights(static_cast<size_t>(last / stride + 1));
    double highest = -std::numeric_limits<double>::infinity(), total = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      double sum = 0, magnitude = 0;
      int64_t pairs = 0;
      for (int64_t s = 0; s < stride; ++s) {
        const int64_t row = static_cast<int64_t>(j) * stride + s, query = first + stride - 1 - s;
        if (row >= head.k.rows || query >= head.rows()) continue;
        ++pairs;
        for (int64_t i = 0; i < d; ++i) {
          const double product = double{head.q.Row<float>(query)[i]} * head.k.Row<float>(row)[i];
          sum += product;
          magnitude += std::abs(product);
        }
      }
      // A square without a pair has no score, and no share.
      weights[j] = pairs == 0 ? -std::numeric_limits<double>::infinity()
                              : head.Capped(sum * head.scale / static_cast<double>(pairs));
      highest = std::max(highest, weights[j]);
      if (pairs > 0) {
        const auto n = static_cast<double>(pairs);
        worst = std::max(worst,
                         head.ScoreError(magnitude * head.scale / n, n * static_cast<double>(d)));
      }
    }
    if (std::isinf(highest)) continue;
    for (double& x : weights) total += x = std::exp(x - highest);
    for (size_t j = 0; j < weights.size(); ++j) {
      result.shares[j * static_cast<size_t>(stride) / KeptBlocks::kRows] +=
          weights[j] / total / static_cast<double>(squares);
    }
  }
  // If scores are off by up to e, odds are by a factor of up to exp(2 e), and a sum S of shares by
  // up to S (1 - S) (exp(2 e) - 1). The rest is for sums in f32.
  result.error = std::expm1(2 * worst) / 4 + 1e-5;
  return result;
}

// Of all blocks of queries.
inline std::vector<BlockShares> EstimateShares(const SparseHead& head) {
  std::vector<BlockShares> all;
  for (int64_t i = 0; i < head.query_blocks(); ++i) all.push_back(EstimateSharesOf(head, i));
  return all;
}

// A head's chosen blocks: those always kept, none that is not seen, and as few of the largest
// shares as reach `mass`.
inline void ExpectChosen(const SparseHead& head, const std::vector<BlockShares>& estimate,
                         const KeptBlocks& kept, int64_t q_head, double mass, bool whole_end) {
  ASSERT_EQ(kept.query_rows, head.query_rows);
  ASSERT_EQ(kept.query_blocks, head.query_blocks());
  ASSERT_GE(kept.words * int64_t{32} * KeptBlocks::kRows, head.k.rows);
  for (int64_t i = 0; i < head.query_blocks(); ++i) {
    SCOPED_TRACE("query head " + std::to_string(q_head) + ", block of queries " +
                 std::to_string(i));
    const auto& [shares, error] = estimate[static_cast<size_t>(i)];
    const auto visible = static_cast<int64_t>(shares.size());
    const bool whole = mass == 1 || (whole_end && i == head.query_blocks() - 1);
    double sum = 0, smallest = 1, largest_left = 0;  // of the kept ones, of the others
    bool any = false;
    for (int64_t b = 0; b < int64_t{kept.words} * 32; ++b) {
      const bool keeps = IsKept(kept, q_head, i, b);
      if (b >= visible) {
        ASSERT_FALSE(keeps) << "block " << b << " is not seen";
        continue;
      }
      ASSERT_TRUE(keeps || !(whole || head.Forced(i, b))) << "block " << b;
      const double share = shares[static_cast<size_t>(b)];
      if (!keeps) {
        largest_left = std::max(largest_left, share);
        continue;
      }
      sum += share;
      if (head.Forced(i, b)) continue;
      smallest = std::min(smallest, share);
      any = true;
    }
    if (whole) continue;
    ASSERT_TRUE(sum >= mass - error || largest_left == 0) << sum;
    if (!any) continue;
    ASSERT_GE(smallest, largest_left - 2 * error);
    // The block that was kept last may be another of about the same share.
    ASSERT_LT(sum - smallest, mass + 3 * error);
  }
}

// Attention of one query in double precision, and a bound for an implementation's error.
struct AttendedQuery {
  std::vector<double> out, bound;  // [head_dim]
};

// Over the rows of the blocks in `bits` (null: all) up to the query's own. The bound is that of
// attention_test.cc: errors of scores, and probabilities that are rounded.
inline AttendedQuery AttendKept(const SparseHead& head, int64_t query, const uint32_t* bits,
                                double sink = -std::numeric_limits<double>::infinity()) {
  const auto d = static_cast<size_t>(head.q.cols);
  struct Row {
    const float* v;
    double weight, error;
  };
  std::vector<Row> rows;
  double highest = sink;
  for (int64_t t = 0; t <= head.past + query; ++t) {
    const int64_t block = t / KeptBlocks::kRows;
    if (bits != nullptr && (bits[block / 32] >> block % 32 & 1) == 0) continue;
    double score = 0, magnitude = 0;
    for (size_t i = 0; i < d; ++i) {
      const double product =
          double{head.q.Row<float>(query)[i]} * head.k.Row<float>(t)[i] * head.scale;
      score += product;
      magnitude += std::abs(product);
    }
    score = head.Capped(score);
    rows.push_back(
        {head.v.Row<float>(t), score, head.ScoreError(magnitude, static_cast<double>(d))});
    highest = std::max(highest, score);
  }
  double total = std::exp(sink - highest);
  for (Row& row : rows) total += row.weight = std::exp(row.weight - highest);
  AttendedQuery result{std::vector<double>(d), std::vector<double>(d, 1e-6)};
  for (const Row& row : rows) {
    for (size_t i = 0; i < d; ++i) result.out[i] += row.weight / total * row.v[i];
  }
  for (const Row& row : rows) {
    for (size_t i = 0; i < d; ++i) {
      result.bound[i] +=
          row.weight / total *
          (row.error * std::abs(row.v[i] - result.out[i]) + head.unit() * std::abs(row.v[i]));
    }
  }
  return result;
}

}  // namespace litecache::ops
