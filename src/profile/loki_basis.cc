#include "profile/loki_basis.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace litecache::profile {

KeyCovariance::KeyCovariance(int64_t head_dim)
    : dim_(head_dim),
      sum_(static_cast<size_t>(head_dim)),
      products_(static_cast<size_t>(head_dim * head_dim)) {}

void KeyCovariance::Add(const float* keys, int64_t count) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Square = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Square> products(products_.data(), dim_, dim_);
  Eigen::Map<Eigen::VectorXd> sum(sum_.data(), dim_);
  // Pieces whose copies in double fit a cache.
  constexpr int64_t kPiece = 512;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t rows = std::min(kPiece, count - begin);
    const Eigen::MatrixXd piece =
        Eigen::Map<const Rows>(keys + begin * dim_, rows, dim_).cast<double>();
    products.selfadjointView<Eigen::Upper>().rankUpdate(piece.transpose());
    sum += piece.colwise().sum().transpose();
  }
  count_ += count;
}

std::vector<double> KeyCovariance::Covariance() const {
  std::vector<double> covariance(products_.size());
  if (count_ == 0) return covariance;
  const auto n = static_cast<double>(count_);
  for (int64_t a = 0; a < dim_; ++a) {
    for (int64_t b = a; b < dim_; ++b) {
      const double value = products_[static_cast<size_t>(a * dim_ + b)] / n -
                           sum_[static_cast<size_t>(a)] / n * (sum_[static_cast<size_t>(b)] / n);
      covariance[static_cast<size_t>(a * dim_ + b)] = value;
      covariance[static_cast<size_t>(b * dim_ + a)] = value;
    }
  }
  return covariance;
}

std::vector<double> KeyCovariance::SecondMoment() const {
  std::vector<double> moment(products_.size());
  const auto n = static_cast<double>(std::max<int64_t>(count_, 1));
  for (int64_t a = 0; a < dim_; ++a) {
    for (int64_t b = a; b < dim_; ++b) {
      const double value = products_[static_cast<size_t>(a * dim_ + b)] / n;
      moment[static_cast<size_t>(a * dim_ + b)] = value;
      moment[static_cast<size_t>(b * dim_ + a)] = value;
    }
  }
  return moment;
}

std::vector<float> PrincipalComponents(const std::vector<double>& covariance, int64_t dim) {
  LC_CHECK(static_cast<int64_t>(covariance.size()) == dim * dim);
  const Eigen::Map<const Eigen::MatrixXd> matrix(covariance.data(), dim, dim);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix);
  LC_CHECK(solver.info() == Eigen::Success);
  std::vector<float> basis(static_cast<size_t>(dim * dim));
  for (int64_t c = 0; c < dim; ++c) {
    // Eigen sorts in ascending order.
    const Eigen::VectorXd vector = solver.eigenvectors().col(dim - 1 - c);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    const double sign = vector[largest] < 0 ? -1 : 1;
    for (int64_t row = 0; row < dim; ++row) {
      basis[static_cast<size_t>(row * dim + c)] = static_cast<float>(sign * vector[row]);
    }
  }
  return basis;
}

}  // namespace litecache::profile
