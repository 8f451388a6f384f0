// Directions of keys and queries: Loki's principal components, and the skews that concentrate keys
// and queries in few channels.
#pragma once

#include <cstdint>
#include <vector>

namespace litecache::profile {

// Accumulates the covariance of one head's keys or queries, window by window.
class KeyCovariance {
 public:
  explicit KeyCovariance(int64_t head_dim);

  // keys [count][head_dim].
  void Add(const float* keys, int64_t count);
  int64_t count() const { return count_; }
  // [d][d], about the mean. No mean is subtracted at run time, because that would change all scores
  // of a query by the same amount.
  std::vector<double> Covariance() const;
  // [d][d], about zero: the eigenvectors are the rows' right singular vectors.
  std::vector<double> SecondMoment() const;

 private:
  int64_t dim_;
  int64_t count_ = 0;
  std::vector<double> sum_;       // [d]
  std::vector<double> products_;  // [d][d], upper triangle
};

// Eigenvectors of a symmetric matrix [d][d] as columns, largest eigenvalue first. Each column's
// largest entry is positive, so that results do not depend on the solver's signs.
std::vector<float> PrincipalComponents(const std::vector<double>& covariance, int64_t dim);

}  // namespace litecache::profile
