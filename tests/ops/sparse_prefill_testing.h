// A random sequence with a prompt chunk, for tests of sparse attention on the CPU.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/paged_testing.h"
#include "ops/sparse_prefill_reference.h"

namespace litecache::ops {

struct SparseCase {
  int64_t head_dim, kv_heads, group, page_tokens;
  DType dtype;
  int64_t past, rows;
  float cap = 0;

  int64_t q_heads() const { return kv_heads * group; }
  int64_t context() const { return past + rows; }
};

inline std::string Describe(const SparseCase& c) {
  return fmt::format(
      "head_dim {}, {} KV heads, group {}, pages of {}, {}, past {}, rows {}, cap {}", c.head_dim,
      c.kv_heads, c.group, c.page_tokens, Name(c.dtype), c.past, c.rows, c.cap);
}

// A sequence whose chunk is in the pages, and the same as floats. All of K, V and q are normal; a
// direction of norm sqrt(head_dim), which the keys of a block have in common, makes shares differ.
class SparseChunk {
 public:
  SparseChunk(Random& random, const SparseCase& c)
      : c_(c),
        format_{c.dtype == DType::kBF16 ? RowEncoding::kBF16 : RowEncoding::kF32, c.head_dim},
        q_(DType::kF32, kFirstRow + c.rows + 1, c.q_heads() * c.head_dim, 3) {
    double norm = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) {
      direction_.push_back(random.Normal());
      norm += std::pow(direction_.back(), 2);
    }
    for (float& x : direction_) x *= static_cast<float>(std::sqrt(c.head_dim / norm));
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      pages_.emplace_back(random, format_, c.context(), c.page_tokens);
      k_.emplace_back(DType::kF32, c.context(), c.head_dim);
      v_.emplace_back(DType::kF32, c.context(), c.head_dim);
      for (int64_t b = 0; b * KeptBlocks::kRows < c.context(); ++b) {
        const float part = random.Normal(0.5f);
        const int64_t first = b * KeptBlocks::kRows;
        for (int64_t t = first; t < std::min(first + KeptBlocks::kRows, c.context()); ++t) {
          SetKey(random, h, t, 1, part);
          for (int64_t i = 0; i < c.head_dim; ++i) {
            SetElement(h, t, c.head_dim + i, random.Normal(), v_.back());
          }
        }
      }
    }
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t j = 0; j < c.q_heads(); ++j) SetQuery(random, r, j, 1, random.Normal());
    }
    for (const PagedBlock& pages : pages_) heads_.push_back(pages.rows().pages);
  }

  // noise * (normal) + part * direction.
  void SetKey(Random& random, int64_t head, int64_t t, float noise, float part) {
    for (int64_t i = 0; i < c_.head_dim; ++i) {
      const float value = random.Normal(noise) + part * direction_[static_cast<size_t>(i)];
      SetElement(head, t, i, value, k_[static_cast<size_t>(head)]);
    }
  }
  void SetQuery(Random& random, int64_t r, int64_t q_head, float noise, float part) {
    for (int64_t i = 0; i < c_.head_dim; ++i) {
      q_.Set(kFirstRow + r, q_head * c_.head_dim + i,
             random.Normal(noise) + part * direction_[static_cast<size_t>(i)]);
    }
  }

  KvGeometry geometry() const {
    return {.kv_heads = c_.kv_heads,
            .head_dim = c_.head_dim,
            .dtype = c_.dtype,
            .page_tokens = c_.page_tokens};
  }
  KvSequence sequence() const {
    return {.first_row = kFirstRow,
            .rows = c_.rows,
            .past = c_.past,
            .pages = heads_.data(),
            .pages_per_head = (c_.context() + c_.page_tokens - 1) / c_.page_tokens};
  }
  Matrix& q() { return q_; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(c_.head_dim)); }
  Softmax SoftmaxWith(const float* sinks) const { return {scale(), sinks, c_.cap}; }
  SparseHead Head(int64_t q_head) const {
    const auto h = static_cast<size_t>(q_head / c_.group);
    return {.k = k_[h].view(),
            .v = v_[h].view(),
            .q = q_.view().Rows(kFirstRow, c_.rows).Columns(q_head * c_.head_dim, c_.head_dim),
            .past = c_.past,
            .scale = scale(),
            .dtype = c_.dtype,
            .cap = c_.cap};
  }

  Matrix Attend(Stream& stream, const KeptBlocks* kept, const float* sinks = nullptr) const {
    Matrix out(DType::kF32, q_.view().rows, q_.view().cols, 1);
    const KvSequence view = sequence();
    Attention(stream, geometry(), {&view, 1}, q_.view(), c_.q_heads(), SoftmaxWith(sinks),
              out.view(), kept);
    return out;
  }
  ChosenBlocks Choose(Stream& stream, double mass, bool whole_end = false) const {
    ChosenBlocks out;
    ChooseBlocks(stream, geometry(), sequence(), q_.view(), c_.q_heads(), SoftmaxWith(nullptr),
                 mass, whole_end, &out);
    return out;
  }
  // The result of a query in Attend()'s.
  const float* Result(const Matrix& out, int64_t r, int64_t q_head) const {
    return out.view().Row<float>(kFirstRow + r) + q_head * c_.head_dim;
  }

 private:
  static constexpr int64_t kFirstRow = 2;  // the rows before and after belong to other sequences

  void SetElement(int64_t head, int64_t t, int64_t i, float value, Matrix& matrix) {
    std::byte* row = pages_[static_cast<size_t>(head)].rows().Row(t);
    SetRowValue(format_, row, i, value);
    matrix.Set(t, i % c_.head_dim, static_cast<float>(RowValue(format_, row, i)));
  }

  SparseCase c_;
  RowFormat format_;
  std::vector<float> direction_;
  std::vector<PagedBlock> pages_;
  std::vector<std::byte* const*> heads_;
  std::vector<Matrix> k_, v_;  // of each KV head
  Matrix q_;
};

}  // namespace litecache::ops
