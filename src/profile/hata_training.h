// HATA: learned projections for one KV head, whose signs distinguish a query's top keys.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "device/device.h"

namespace litecache::profile {

// Queries and keys of one text with labels. nq = positions * query heads of the group.
struct HataChunk {
  int64_t queries = 0;  // nq
  int64_t keys = 0;     // nk
  int64_t head_dim = 0;
  std::vector<float> q;        // [nq][d]
  std::vector<float> q_t;      // [d][nq]
  std::vector<float> k;        // [nk][d]
  std::vector<float> k_t;      // [d][nk]
  std::vector<float> label;    // [nq][nk]: 20..1 for top keys by rank, -1 others, 0 not a candidate
  std::vector<float> label_t;  // [nk][nq]
  // Sums of labels and numbers of pairs, for each query [nq] and each key [nk]; items: all pairs.
  std::vector<float> label_q, label_k, pairs_q, pairs_k;
  int64_t items = 0;
};

// q [nq][d], k [nk][d]; query i's candidates are the first candidates[i] keys. The `top_share` of
// them with the largest q.k get labels from 20 down to 1, evenly by rank, the others -1.
HataChunk MakeHataChunk(Stream& stream, int64_t head_dim, std::vector<float> q,
                        std::vector<float> k, const std::vector<int64_t>& candidates,
                        double top_share);

struct HataOptions {
  int64_t bits = 128;
  int64_t iterations = 200;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-6;
  // Weight of the distances. With HATA's 0.01, the orthogonality term alone determines W: the demo
  // model's recall at 10% is 57.7%; with 0.3 it is 62.2%, with 0.5 62.8%, with 1 61.2%, and random
  // projections have 53.1% (four heads, 8K tokens, code and retrieval documents).
  double epsilon = 0.5;
  double lambda = 1.0;  // weight of the bits' balance
  double eta = 2.0;     // weight of ||W^T W - I||
  double sigma = 0.1;   // steepness of the soft sign
  uint64_t seed = 0;
};

// Projections W [d][bits], normal(0, 1).
std::vector<float> RandomProjection(int64_t head_dim, int64_t bits, uint64_t seed);

// Learns W by stochastic gradient descent with momentum, one chunk per iteration; with
// z = 2 sigmoid(sigma x W) - 1:
//   L = epsilon / items * sum label |z_q - z_k|^2 + lambda |sum (z_q + z_k) / (items bits)|^2
//       + eta |W^T W - I|_F
class HataTrainer {
 public:
  HataTrainer(Stream& stream, int64_t head_dim, const HataOptions& options);

  // The loss of a chunk with the current W, and its gradient [d][bits] if not null.
  double Loss(const HataChunk& chunk, std::vector<float>* gradient);
  void Step(const HataChunk& chunk);
  // Runs all iterations, over the chunks in random order. progress(iterations done).
  void Train(const std::vector<HataChunk>& chunks,
             const std::function<void(int64_t done)>& progress);

  // [d][bits]; each column is scaled to length 1, which changes no sign.
  std::vector<float> Weights() const;
  void SetWeights(const std::vector<float>& weights);  // [d][bits]

 private:
  double LossT(const HataChunk& chunk, float* gradient_t);

  Stream& stream_;
  int64_t dim_;
  HataOptions options_;
  std::vector<float> weights_t_;  // [bits][d]
  std::vector<float> velocity_t_;
  std::vector<float> gradient_t_;
  // [bits][nk], [bits][nq]: soft codes; the pull of the labels on them, later their gradients.
  std::vector<float> z_k_, z_q_, pull_k_, pull_q_;
};

}  // namespace litecache::profile
