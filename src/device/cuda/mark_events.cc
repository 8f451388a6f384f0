#include "device/cuda/mark_events.h"

#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace litecache {
namespace {

class MarkEvents final : public MarkTimes {
 public:
  MarkEvents() = default;
  ~MarkEvents() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  MarkEvents(const MarkEvents&) = delete;
  MarkEvents& operator=(const MarkEvents&) = delete;

  void Take(Stream& stream, size_t index) override {
    while (events_.size() <= index) {
      cudaEvent_t event = nullptr;
      LC_CUDA(cudaEventCreate(&event));
      events_.push_back(event);
    }
    CUstream_st* handle = AsCuda(stream).handle();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LC_CUDA(cudaStreamIsCapturing(handle, &status));
    // External: becomes a node of the graph whose time can be read from outside.
    LC_CUDA(cudaEventRecordWithFlags(
        events_[index], handle,
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal));
  }

  double SecondsFrom(size_t index) const override {
    float milliseconds = 0;
    LC_CUDA(cudaEventElapsedTime(&milliseconds, events_.at(index), events_.at(index + 1)));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<MarkTimes> MakeMarkEvents() { return std::make_unique<MarkEvents>(); }

}  // namespace litecache
