#include "profile/recall.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"
#include "ops/linear/linear.h"
#include "profile/top_rows.h"

namespace litecache::profile {
namespace {

// x [count][d] times the first `cols` columns of weights [d][all].
std::vector<float> Project(Stream& stream, const float* x, int64_t count, int64_t d,
                           std::span<const float> weights, int64_t all, int64_t cols) {
  std::vector<float> transposed(static_cast<size_t>(cols * d));
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t i = 0; i < d; ++i) {
      transposed[static_cast<size_t>(c * d + i)] = weights[static_cast<size_t>(i * all + c)];
    }
  }
  std::vector<float> y(static_cast<size_t>(count * cols));
  ops::Linear(stream, MatrixView::Of(const_cast<float*>(x), count, d),
              MatrixView::Of(transposed.data(), cols, d), nullptr,
              MatrixView::Of(y.data(), count, cols));
  return y;
}

using Words = std::vector<uint64_t>;

// Signs of x [count][bits], 64 per word.
Words Pack(const std::vector<float>& x, int64_t bits) {
  const int64_t words = (bits + 63) / 64;
  const int64_t count = static_cast<int64_t>(x.size()) / bits;
  Words codes(static_cast<size_t>(count * words));
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t bit = 0; bit < bits; ++bit) {
      const uint64_t set = x[static_cast<size_t>(row * bits + bit)] > 0 ? 1 : 0;
      codes[static_cast<size_t>(row * words + bit / 64)] |= set << (bit % 64);
    }
  }
  return codes;
}

// Selects by score(step, begin, end, out) for every stride-th step, in parallel, and compares.
void Compare(Stream& stream, const RecallWork& work,
             const std::function<void(int64_t step, int64_t begin, int64_t end, float* out)>& score,
             Recall* recall) {
  const HeadRecording& head = work.head;
  const int64_t count = (head.steps + work.stride - 1) / work.stride;
  std::vector<double> shares(static_cast<size_t>(count));
  AsCpu(stream).pool().ParallelFor(count, 1, [&](int64_t first, int64_t last, int) {
    std::vector<float> scores, scratch;
    std::vector<int32_t> positions;
    for (int64_t i = first; i < last; ++i) {
      const int64_t step = i * work.stride;
      const StepRange range = RangeOf(head, work.options, step);
      const auto& exact = work.exact[static_cast<size_t>(step)];
      if (exact.empty()) continue;
      scores.resize(static_cast<size_t>(range.end - range.begin));
      score(step, range.begin, range.end, scores.data());
      SelectLargest(scores.data(), range.end - range.begin, range.k, range.begin, scratch,
                    &positions);
      shares[static_cast<size_t>(i)] =
          static_cast<double>(CountCommon(positions, exact)) / static_cast<double>(exact.size());
    }
  });
  for (const double share : shares) recall->sum += share;
  recall->steps += count;
}

}  // namespace

void AddHataRecall(Stream& stream, const RecallWork& work, std::span<const float> weights,
                   int64_t bits, bool norms, Recall* recall) {
  const HeadRecording& head = work.head;
  const int64_t d = head.head_dim, words = (bits + 63) / 64;
  LC_CHECK(static_cast<int64_t>(weights.size()) == d * bits);
  const Words keys = Pack(Project(stream, head.keys, head.tokens, d, weights, bits, bits), bits);
  const Words queries =
      Pack(Project(stream, head.actual, head.steps * head.group, d, weights, bits, bits), bits);
  std::vector<float> lengths(static_cast<size_t>(head.tokens), 1);
  for (int64_t i = 0; norms && i < head.tokens; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += std::pow(double{head.keys[i * d + c]}, 2);
    lengths[static_cast<size_t>(i)] = static_cast<float>(std::sqrt(sum));
  }
  Compare(
      stream, work,
      [&](int64_t step, int64_t begin, int64_t end, float* out) {
        const uint64_t* q = queries.data() + step * head.group * words;
        for (int64_t i = begin; i < end; ++i) {
          const uint64_t* k = keys.data() + i * words;
          int64_t differing = 0;
          for (int64_t j = 0; j < head.group; ++j) {
            for (int64_t w = 0; w < words; ++w) differing += std::popcount(q[j * words + w] ^ k[w]);
          }
          const double equal = static_cast<double>(head.group) -
                               2 * static_cast<double>(differing) / static_cast<double>(bits);
          out[i - begin] = static_cast<float>(equal * double{lengths[static_cast<size_t>(i)]});
        }
      },
      recall);
}

void AddLokiRecall(Stream& stream, const RecallWork& work, std::span<const float> basis,
                   int64_t rank, Recall* recall) {
  const HeadRecording& head = work.head;
  const int64_t d = head.head_dim;
  LC_CHECK(static_cast<int64_t>(basis.size()) == d * d && rank >= 1 && rank <= d);
  const std::vector<float> keys = Project(stream, head.keys, head.tokens, d, basis, d, rank);
  const std::vector<float> queries =
      Project(stream, head.actual, head.steps * head.group, d, basis, d, rank);
  Compare(
      stream, work,
      [&](int64_t step, int64_t begin, int64_t end, float* out) {
        std::vector<float> products(static_cast<size_t>(end - begin));
        std::fill(out, out + (end - begin), 0.0f);
        for (int64_t j = 0; j < head.group; ++j) {
          const float* q = queries.data() + (step * head.group + j) * rank;
          for (int64_t i = begin; i < end; ++i) {
            float sum = 0;
            for (int64_t c = 0; c < rank; ++c)
              sum += q[c] * keys[static_cast<size_t>(i * rank + c)];
            products[static_cast<size_t>(i - begin)] = head.scale * sum;
          }
          const float largest = *std::max_element(products.begin(), products.end());
          double total = 0;
          for (float& product : products) {
            product = std::exp(product - largest);
            total += double{product};
          }
          const auto inverse = static_cast<float>(1 / total);
          for (int64_t i = 0; i < end - begin; ++i)
            out[i] += products[static_cast<size_t>(i)] * inverse;
        }
      },
      recall);
}

}  // namespace litecache::profile
