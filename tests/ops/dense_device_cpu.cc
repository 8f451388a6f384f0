#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

class DenseCpu final : public DenseDevice {
 public:
  Device& device() override { return device_; }
  void ForEachVariant(const std::function<void()>& body) override { ForEachIsa(body); }
  std::vector<DType> Activations() const override { return {DType::kF32}; }
  std::vector<DType> Tables() const override { return {DType::kBF16, DType::kF16, DType::kF32}; }
  DType InputOf(DType) const override { return DType::kF32; }
  // Accumulated in f32, an error is at most about `terms` units of the magnitudes; random roundings
  // grow with the square root.
  double SumError(int64_t terms, double magnitudes, double sum) const override {
    const double root = std::sqrt(static_cast<double>(terms));
    return std::ldexp(1.0, -24) * (8 * root + 16) * (magnitudes / root + std::abs(sum)) + 1e-30;
  }

 private:
  CpuDevice device_{3};
};

}  // namespace

std::unique_ptr<DenseDevice> OpenDenseDevice(std::string*) { return std::make_unique<DenseCpu>(); }

}  // namespace litecache::ops
