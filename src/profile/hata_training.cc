#include "profile/hata_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"
#include "ops/linear/linear.h"

namespace litecache::profile {
namespace {

MatrixView View(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return MatrixView::Of(const_cast<float*>(values.data()), rows, cols);
}

// y [a][b] = x [a][c] w [b][c]^T
void Product(Stream& stream, const std::vector<float>& x, const std::vector<float>& w, int64_t a,
             int64_t b, int64_t c, float* y, ops::Epilogue epilogue = ops::Epilogue::kStore) {
  ops::Linear(stream, View(x, a, c), View(w, b, c), nullptr, MatrixView::Of(y, a, b), epilogue);
}

std::vector<float> Transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      y[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
    }
  }
  return y;
}

// Turns the `scores` of one query's candidates into labels.
void LabelRow(float* row, int64_t candidates, int64_t keys, double top_share,
              std::vector<int32_t>& order) {
  constexpr double kFirst = 20, kLast = 1;
  const auto top = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(top_share * static_cast<double>(candidates))), 0, candidates);
  order.resize(static_cast<size_t>(candidates));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + top, order.end(), [row](int32_t a, int32_t b) {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
  });
  std::fill(row, row + candidates, -1.0f);
  std::fill(row + candidates, row + keys, 0.0f);
  for (int64_t rank = 0; rank < top; ++rank) {
    const double share = top > 1 ? static_cast<double>(rank) / static_cast<double>(top - 1) : 0;
    row[order[static_cast<size_t>(rank)]] = static_cast<float>(kFirst + (kLast - kFirst) * share);
  }
}

void SumLabels(HataChunk* chunk) {
  chunk->label_q.assign(static_cast<size_t>(chunk->queries), 0);
  chunk->label_k.assign(static_cast<size_t>(chunk->keys), 0);
  chunk->pairs_q = chunk->label_q;
  chunk->pairs_k = chunk->label_k;
  for (size_t i = 0; i < chunk->label_q.size(); ++i) {
    for (size_t j = 0; j < chunk->label_k.size(); ++j) {
      const float label = chunk->label[i * chunk->label_k.size() + j];
      if (label == 0) continue;
      chunk->label_q[i] += label;
      chunk->label_k[j] += label;
      ++chunk->pairs_q[i];
      ++chunk->pairs_k[j];
      ++chunk->items;
    }
  }
}

}  // namespace

HataChunk MakeHataChunk(Stream& stream, int64_t head_dim, std::vector<float> q,
                        std::vector<float> k, const std::vector<int64_t>& candidates,
                        double top_share) {
  HataChunk chunk;
  chunk.head_dim = head_dim;
  chunk.queries = static_cast<int64_t>(q.size()) / head_dim;
  chunk.keys = static_cast<int64_t>(k.size()) / head_dim;
  LC_CHECK(static_cast<int64_t>(candidates.size()) == chunk.queries);
  chunk.q = std::move(q);
  chunk.k = std::move(k);
  chunk.q_t = Transposed(chunk.q, chunk.queries, head_dim);
  chunk.k_t = Transposed(chunk.k, chunk.keys, head_dim);
  chunk.label.resize(static_cast<size_t>(chunk.queries * chunk.keys));
  Product(stream, chunk.q, chunk.k, chunk.queries, chunk.keys, head_dim, chunk.label.data());
  AsCpu(stream).pool().ParallelFor(chunk.queries, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<int32_t> order;
    for (int64_t i = begin; i < end; ++i) {
      LabelRow(chunk.label.data() + i * chunk.keys, candidates[static_cast<size_t>(i)], chunk.keys,
               top_share, order);
    }
  });
  chunk.label_t = Transposed(chunk.label, chunk.queries, chunk.keys);
  SumLabels(&chunk);
  return chunk;
}

std::vector<float> RandomProjection(int64_t head_dim, int64_t bits, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> weights(static_cast<size_t>(head_dim * bits));
  for (float& weight : weights) weight = normal(random);
  return weights;
}

HataTrainer::HataTrainer(Stream& stream, int64_t head_dim, const HataOptions& options)
    : stream_(stream), dim_(head_dim), options_(options) {
  SetWeights(RandomProjection(head_dim, options.bits, options.seed));
}

void HataTrainer::SetWeights(const std::vector<float>& weights) {
  LC_CHECK(static_cast<int64_t>(weights.size()) == dim_ * options_.bits);
  weights_t_ = Transposed(weights, dim_, options_.bits);
  velocity_t_.assign(weights_t_.size(), 0);
  gradient_t_.assign(weights_t_.size(), 0);
}

std::vector<float> HataTrainer::Weights() const {
  std::vector<float> scaled = weights_t_;
  for (int64_t bit = 0; bit < options_.bits; ++bit) {
    float* column = scaled.data() + bit * dim_;
    double sum = 0;
    for (int64_t c = 0; c < dim_; ++c) sum += double{column[c]} * double{column[c]};
    const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (int64_t c = 0; c < dim_; ++c) column[c] = static_cast<float>(double{column[c]} * scale);
  }
  return Transposed(scaled, options_.bits, dim_);
}

double HataTrainer::Loss(const HataChunk& chunk, std::vector<float>* gradient) {
  const double loss = LossT(chunk, gradient != nullptr ? gradient_t_.data() : nullptr);
  if (gradient != nullptr) *gradient = Transposed(gradient_t_, options_.bits, dim_);
  return loss;
}

double HataTrainer::LossT(const HataChunk& chunk, float* gradient_t) {
  const int64_t r = options_.bits, d = dim_, nq = chunk.queries, nk = chunk.keys;
  const double items = static_cast<double>(std::max<int64_t>(chunk.items, 1));
  ThreadPool& pool = AsCpu(stream_).pool();
  z_k_.resize(static_cast<size_t>(r * nk));
  pull_k_.resize(z_k_.size());
  z_q_.resize(static_cast<size_t>(r * nq));
  pull_q_.resize(z_q_.size());

  // Everything is transposed, [bits][...], so that ops::Linear can do each product.
  Product(stream_, weights_t_, chunk.k, r, nk, d, z_k_.data());
  Product(stream_, weights_t_, chunk.q, r, nq, d, z_q_.data());
  const auto half_sigma = static_cast<float>(options_.sigma / 2);
  pool.ParallelFor(r, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * nk; i < end * nk; ++i) {
      z_k_[static_cast<size_t>(i)] = std::tanh(half_sigma * z_k_[static_cast<size_t>(i)]);
    }
    for (int64_t i = begin * nq; i < end * nq; ++i) {
      z_q_[static_cast<size_t>(i)] = std::tanh(half_sigma * z_q_[static_cast<size_t>(i)]);
    }
  });
  Product(stream_, z_q_, chunk.label_t, r, nk, nq, pull_k_.data());
  Product(stream_, z_k_, chunk.label, r, nq, nk, pull_q_.data());

  const double distance_scale = options_.epsilon / items;
  const double balance_scale =
      options_.lambda / (items * static_cast<double>(r)) / (items * static_cast<double>(r));
  std::vector<double> losses(static_cast<size_t>(r));
  // d loss / d (x W), written over the pulls.
  const auto backward = [&](float* z, float* pull, const std::vector<float>& labels,
                            const std::vector<float>& pairs, double total) {
    double loss = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      const double code = double{z[i]};
      // Each product z_q z_k is counted from both sides, each time with half its weight of 2.
      loss += code * (double{labels[i]} * code - double{pull[i]});
      const double slope = 2 * distance_scale * (double{labels[i]} * code - double{pull[i]}) +
                           2 * balance_scale * total * double{pairs[i]};
      pull[i] = static_cast<float>(slope * options_.sigma / 2 * (1 - code * code));
    }
    return loss;
  };
  pool.ParallelFor(r, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t bit = begin; bit < end; ++bit) {
      float* z_k = z_k_.data() + bit * nk;
      float* z_q = z_q_.data() + bit * nq;
      double total = 0;
      for (int64_t j = 0; j < nk; ++j)
        total += double{z_k[j]} * double{chunk.pairs_k[static_cast<size_t>(j)]};
      for (int64_t i = 0; i < nq; ++i)
        total += double{z_q[i]} * double{chunk.pairs_q[static_cast<size_t>(i)]};
      const double distance =
          backward(z_k, pull_k_.data() + bit * nk, chunk.label_k, chunk.pairs_k, total) +
          backward(z_q, pull_q_.data() + bit * nq, chunk.label_q, chunk.pairs_q, total);
      losses[static_cast<size_t>(bit)] = distance_scale * distance + balance_scale * total * total;
    }
  });
  double loss = std::accumulate(losses.begin(), losses.end(), 0.0);

  std::vector<float> excess(static_cast<size_t>(r * r));
  Product(stream_, weights_t_, weights_t_, r, r, d, excess.data());
  double squares = 0;
  for (int64_t bit = 0; bit < r; ++bit) excess[static_cast<size_t>(bit * r + bit)] -= 1;
  for (const float value : excess) squares += double{value} * double{value};
  const double norm = std::sqrt(squares);
  loss += options_.eta * norm;

  if (gradient_t != nullptr) {
    const std::vector<float> weights = Transposed(weights_t_, r, d);
    Product(stream_, excess, weights, r, d, r, gradient_t);
    const auto scale = static_cast<float>(norm > 0 ? 2 * options_.eta / norm : 0);
    for (int64_t i = 0; i < r * d; ++i) gradient_t[i] *= scale;
    Product(stream_, pull_k_, chunk.k_t, r, d, nk, gradient_t, ops::Epilogue::kAdd);
    Product(stream_, pull_q_, chunk.q_t, r, d, nq, gradient_t, ops::Epilogue::kAdd);
  }
  return loss;
}

void HataTrainer::Step(const HataChunk& chunk) {
  LossT(chunk, gradient_t_.data());
  for (size_t i = 0; i < weights_t_.size(); ++i) {
    const double gradient = double{gradient_t_[i]} + options_.weight_decay * double{weights_t_[i]};
    velocity_t_[i] = static_cast<float>(options_.momentum * double{velocity_t_[i]} + gradient);
    weights_t_[i] -= static_cast<float>(options_.learning_rate * double{velocity_t_[i]});
  }
}

void HataTrainer::Train(const std::vector<HataChunk>& chunks,
                        const std::function<void(int64_t done)>& progress) {
  LC_CHECK(!chunks.empty());
  std::mt19937_64 random(options_.seed + 1);
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int64_t i = 0; i < options_.iterations; ++i) {
    const size_t at = static_cast<size_t>(i) % chunks.size();
    if (at == 0) std::shuffle(order.begin(), order.end(), random);
    Step(chunks[order[at]]);
    if (progress) progress(i + 1);
  }
}

}  // namespace litecache::profile
