#include "device/caller_stream.h"

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace litecache {
namespace {

class CallerCudaStream final : public CallerStream {
 public:
  CallerCudaStream(int device, CudaStream& own, CUstream_st* caller)
      : device_(device), own_(own), caller_(caller) {
    LC_CUDA(cudaGetDevice(&callers_device_));
    LC_CUDA(cudaSetDevice(device_));
    LC_CUDA(cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming));
    LC_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming));
    LC_CUDA(cudaSetDevice(callers_device_));
  }
  ~CallerCudaStream() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  CallerCudaStream(const CallerCudaStream&) = delete;
  CallerCudaStream& operator=(const CallerCudaStream&) = delete;

  void Use(void* handle) override { caller_ = static_cast<CUstream_st*>(handle); }

  void Enter() override {
    LC_CUDA(cudaGetDevice(&callers_device_));
    LC_CUDA(cudaSetDevice(device_));
    LC_CUDA(cudaEventRecord(begin_, caller_));
    LC_CUDA(cudaStreamWaitEvent(own_.handle(), begin_, 0));
  }

  void Leave() noexcept override {
    if (cudaEventRecord(end_, own_.handle()) == cudaSuccess) cudaStreamWaitEvent(caller_, end_, 0);
    cudaSetDevice(callers_device_);
  }

 private:
  int device_;
  int callers_device_ = 0;
  CudaStream& own_;
  CUstream_st* caller_;
  CUevent_st *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace

std::unique_ptr<CallerStream> OrderWithCaller(Device& device, Stream& own, void* handle) {
  return std::make_unique<CallerCudaStream>(static_cast<CudaDevice&>(device).index(), AsCuda(own),
                                            static_cast<CUstream_st*>(handle));
}

KeepsCurrentGpu::KeepsCurrentGpu() {
  if (cudaGetDevice(&gpu_) == cudaSuccess) return;
  cudaGetLastError();
  gpu_ = -1;
}

KeepsCurrentGpu::~KeepsCurrentGpu() {
  if (gpu_ >= 0) cudaSetDevice(gpu_);
}

}  // namespace litecache
