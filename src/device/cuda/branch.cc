#include "device/cuda/branch.h"

#include <utility>

#include "device/cuda/check.h"

namespace litecache {
namespace {

CUevent_st* CreateEvent() {
  cudaEvent_t event = nullptr;
  LC_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

// A hint only: if the driver ignores it, only timing changes.
void AskToBeFirst(CudaStream& stream) {
  int least = 0, greatest = 0;
  LC_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStreamAttrValue value = {};
  value.priority = greatest;
  if (cudaStreamSetAttribute(stream.handle(), cudaStreamAttributePriority, &value) != cudaSuccess) {
    cudaGetLastError();
  }
}

}  // namespace

CudaBranch::CudaBranch(CudaDevice& device, int marks, bool first)
    : CudaBranch(std::make_unique<CudaStream>(device.index(), device.sm_count()), marks) {
  if (first) AskToBeFirst(cuda());
}

CudaBranch::CudaBranch(std::unique_ptr<CudaStream> stream, int marks)
    : stream_(std::move(stream)), marks_(static_cast<size_t>(marks)) {
  fork_ = CreateEvent();
  end_ = CreateEvent();
  for (Event& mark : marks_) mark.handle = CreateEvent();
}

CudaBranch::~CudaBranch() {
  cudaStreamSynchronize(cuda().handle());
  for (const Event& mark : marks_) cudaEventDestroy(mark.handle);
  cudaEventDestroy(end_);
  cudaEventDestroy(fork_);
}

void CudaBranch::Fork(Stream& main) {
  LC_CUDA(cudaEventRecord(fork_, AsCuda(main).handle()));
  LC_CUDA(cudaStreamWaitEvent(cuda().handle(), fork_, 0));
  open_ = true;
}

void CudaBranch::Mark(int mark) {
  Event& event = marks_.at(static_cast<size_t>(mark));
  LC_CUDA(cudaEventRecord(event.handle, cuda().handle()));
  event.made = true;
}

void CudaBranch::Join(Stream& main, int mark) {
  const Event& event = marks_.at(static_cast<size_t>(mark));
  if (event.made) LC_CUDA(cudaStreamWaitEvent(AsCuda(main).handle(), event.handle, 0));
}

void CudaBranch::JoinAll(Stream& main) {
  if (!open_) return;
  LC_CUDA(cudaEventRecord(end_, cuda().handle()));
  LC_CUDA(cudaStreamWaitEvent(AsCuda(main).handle(), end_, 0));
  open_ = false;
}

void CudaBranch::Reset() {
  for (Event& mark : marks_) mark.made = false;
  if (open_) LC_CUDA(cudaStreamSynchronize(cuda().handle()));
  open_ = false;
}

}  // namespace litecache
