#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_devices.h"
#include "ops/dense_testing.h"
#include "ops/linear/gemv_cuda.h"

namespace litecache::ops {
namespace {

class DenseGpu final : public DenseDevice {
 public:
  Device& device() override { return device_; }
  std::vector<DType> Activations() const override { return {DType::kF32, DType::kBF16}; }
  std::vector<DType> Tables() const override { return {DType::kBF16, DType::kF32}; }
  DType InputOf(DType weight) const override { return weight; }
  // f32 sums in blocks, truncated by tensor cores: sqrt(n) units of the sum of magnitudes, far
  // below one missing product.
  double SumError(int64_t terms, double magnitudes, double) const override {
    return std::ldexp(1.0, -22) * (std::sqrt(static_cast<double>(terms)) + 8) * magnitudes;
  }
  // The implementation for GPUs before sm_90.
  bool LinearOtherwise(Stream& stream, const MatrixView& x, const LinearPart& part,
                       Epilogue epilogue) override {
    if (x.dtype != DType::kBF16 || x.rows > cuda::kMaxGemvRows) return false;
    cuda::Gemv(stream, x, {&part, 1}, epilogue);
    return true;
  }

 private:
  CudaDevice device_{0};
};

}  // namespace

std::unique_ptr<DenseDevice> OpenDenseDevice(std::string* reason) {
  const CudaDevices found = FindCudaDevices();
  if (!found.devices.empty()) return std::make_unique<DenseGpu>();
  *reason = "no GPU: " + found.reason;
  return nullptr;
}

}  // namespace litecache::ops
