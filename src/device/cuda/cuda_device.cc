#include "device/cuda/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "base/units.h"
#include "device/cpu/memory_limits.h"
#include "device/cuda/allocated.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_devices.h"
#include "device/cuda/recordings.h"
#include "device/device_error.h"

namespace litecache {
namespace {

std::atomic<int64_t> allocated{0};

void FreeDevice(void* data, size_t bytes) {
  cudaFree(data);
  CountGpuMemory(-static_cast<int64_t>(bytes));
}

// Pinned host memory beside device memory.
class CudaMirror final : public Mirror {
 public:
  CudaMirror(Buffer host, Buffer device)
      : Mirror(host.data(), device.data()), host_(std::move(host)), device_(std::move(device)) {}
  void Send(Stream& stream, size_t bytes) override {
    LC_CHECK(bytes <= host_.size());
    LC_CUDA(cudaMemcpyAsync(device_.data(), host_.data(), bytes, cudaMemcpyHostToDevice,
                            AsCuda(stream).handle()));
  }
  void Receive(Stream& stream, size_t bytes) override {
    LC_CHECK(bytes <= host_.size());
    LC_CUDA(cudaMemcpyAsync(host_.data(), device_.data(), bytes, cudaMemcpyDeviceToHost,
                            AsCuda(stream).handle()));
  }

 private:
  Buffer host_, device_;
};

}  // namespace

uint64_t AllocatedGpuMemory() { return static_cast<uint64_t>(allocated.load()); }
void CountGpuMemory(int64_t bytes) { allocated += bytes; }

CudaStream::CudaStream(int device, int sm_count, CUstream_st* handle)
    : handle_(handle),
      sm_count_(sm_count),
      recordings_(std::make_unique<Recordings>(
          kMostSteps, [](CUgraphExec_st* graph) { cudaGraphExecDestroy(graph); })),
      own_sm_count_(sm_count) {
  LC_CUDA(cudaSetDevice(device));
  if (handle_ == nullptr) LC_CUDA(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  own_handle_ = handle_;
  LC_CUDA(cudaEventCreateWithFlags(&turn_, cudaEventDisableTiming));
  LC_CUDA(cudaEventCreate(&step_begin_));
  LC_CUDA(cudaEventCreate(&step_end_));
  constexpr size_t kBytes = kArrivals * sizeof(*arrivals_);
  void* arrivals = nullptr;
  LC_CUDA(cudaMalloc(&arrivals, kBytes));
  arrivals_ = static_cast<uint32_t*>(arrivals);
  LC_CUDA(cudaMemsetAsync(arrivals_, 0, kBytes, handle_));
}

CudaStream::~CudaStream() {
  DropGraphs();
  cudaStreamDestroy(own_handle_);
  for (CUevent_st* const event : {turn_, step_begin_, step_end_}) cudaEventDestroy(event);
  cudaFree(arrivals_);
}

// A wait that should be short, judged by this thread's recent waits, spins. A wait for a recorded
// step sleeps until shortly before the step should end and then spins (decode at 131,000 tokens:
// the GPU idles for 25 us between two steps instead of 120 to 135). All other waits sleep.
void CudaStream::Synchronize() {
  thread_local double expected = 0;
  const uint64_t launches = recordings_->launches();
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double awake_until = expected < StepWait::kSpinSeconds ? StepWait::kSpinSeconds : 0;
  if (const std::optional<double> left = recordings_->Remaining()) {
    const StepWait::Plan plan = step_wait_.For(*left);
    if (plan.sleep > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(plan.sleep));
      step_wait_.Woke(waited() - plan.sleep);
    }
    awake_until = plan.awake_until;
  }
  while (waited() < awake_until && cudaStreamQuery(handle_) == cudaErrorNotReady) {
  }
  cudaGetLastError();  // "not ready" would be taken for the next launch's error
  LC_CUDA(cudaStreamSynchronize(handle_));
  recordings_->Finished(launches, StepSeconds());
  expected = 0.5 * (expected + waited());
  for (size_t i = 0; i < checks_.size(); ++i) {
    if (const auto check = checks_[i].lock()) (*check)();
  }
}

std::optional<double> CudaStream::StepSeconds() const {
  if (recordings_->pending() == nullptr) return std::nullopt;
  float milliseconds = 0;
  LC_CUDA(cudaEventElapsedTime(&milliseconds, step_begin_, step_end_));
  return 1e-3 * static_cast<double>(milliseconds);
}

void CudaStream::AddCheck(const std::shared_ptr<const std::function<void()>>& check) {
  // Removes this check as well, so that it is called only once.
  std::erase_if(checks_, [&](const auto& held) { return held.expired() || held.lock() == check; });
  checks_.push_back(check);
}

void CudaStream::Divert(std::shared_ptr<CudaStream> part) {
  Return();
  LC_CUDA(cudaEventRecord(turn_, handle_));
  LC_CUDA(cudaStreamWaitEvent(part->handle(), turn_, 0));
  part_ = std::move(part);
  handle_ = part_->handle();
  sm_count_ = part_->sm_count();
  last_overlapping_ = {};  // kernels overlap only on the same SMs
}

void CudaStream::Return() {
  if (!diverted()) return;
  CUstream_st* const part = std::exchange(handle_, own_handle_);
  sm_count_ = own_sm_count_;
  last_overlapping_ = {};
  LC_CUDA(cudaEventRecord(turn_, part));
  LC_CUDA(cudaStreamWaitEvent(handle_, turn_, 0));
}

void CudaStream::Issue(const std::function<void()>& issue) {
  try {
    issue();
  } catch (...) {
    try {
      Return();
    } catch (const std::exception&) {
      cudaGetLastError();  // the recording has failed; the exception from issue() says why
    }
    throw;
  }
  Return();
}

void CudaStream::DropGraphs() { recordings_->Clear(); }

size_t CudaStream::steps() const { return recordings_->size(); }

void CudaStream::Run(uint64_t key, const std::function<void()>& issue) {
  Return();  // ends the diversion of a step that failed outside of Run()
  if (!use_graphs_) return Issue(issue);
  Recordings::Step* const step = recordings_->Use(key);
  if (step == nullptr) return Issue(issue);
  if (step->graph == nullptr) {
    cudaGraph_t graph = nullptr;
    LC_CUDA(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
    try {
      Issue(issue);
    } catch (...) {
      cudaStreamEndCapture(handle_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    LC_CUDA(cudaStreamEndCapture(handle_, &graph));
    const cudaError_t error = cudaGraphInstantiate(&step->graph, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(error, "cudaGraphInstantiate");
  }
  const auto begun = std::chrono::steady_clock::now();
  if (recordings_->pending() == nullptr) LC_CUDA(cudaEventRecord(step_begin_, handle_));
  LC_CUDA(cudaGraphLaunch(step->graph, handle_));
  LC_CUDA(cudaEventRecord(step_end_, handle_));
  recordings_->Launched(*step, begun);
}

CudaStream& AsCuda(Stream& stream) {
  LC_CHECK(stream.device_type() == DeviceType::kCuda);
  return static_cast<CudaStream&>(stream);
}

CudaDevice::CudaDevice(int index) : index_(index) {
  const CudaDevices found = FindCudaDevices(index);
  if (index < 0 || index >= static_cast<int>(found.devices.size())) {
    throw DeviceError(found.devices.empty()
                          ? fmt::format("no GPU: {} (device 'cpu' needs none)", found.reason)
                          : fmt::format("GPU {} does not exist: this machine has {}", index,
                                        found.devices.size()));
  }
  LC_CUDA(cudaSetDevice(index));
  // A thread that waits for the GPU sleeps (Synchronize): by default it would spin, which takes a
  // core for all of a decode step.
  if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) cudaGetLastError();
  LC_CUDA(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, index));
  int major = 0, minor = 0;
  LC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  LC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  capability_ = 10 * major + minor;
  if (capability_ < 80) {
    throw DeviceError(fmt::format("{} is too old: LiteCache needs sm_80 (Ampere) or later",
                                  found.devices[static_cast<size_t>(index)].name));
  }
}

CudaDevice::~CudaDevice() = default;

DeviceInfo CudaDevice::Info() const {
  const CudaDevices found = FindCudaDevices(index_);
  if (index_ >= static_cast<int>(found.devices.size())) {
    throw DeviceError(fmt::format("GPU {} is gone: {}", index_, found.reason));
  }
  return found.devices[static_cast<size_t>(index_)];
}

Buffer CudaDevice::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  LC_CUDA(cudaSetDevice(index_));
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const DeviceInfo info = Info();
    throw CapacityError("cannot allocate {} on {}: {} are free", FormatBytes(bytes), info.name,
                        FormatBytes(info.free_memory));
  }
  CheckCuda(error, "cudaMalloc");
  CountGpuMemory(static_cast<int64_t>(bytes));
  return {data, bytes, FreeDevice};
}

std::unique_ptr<Stream> CudaDevice::CreateStream() {
  return std::make_unique<CudaStream>(index_, sm_count_);
}

std::unique_ptr<Mirror> CudaDevice::CreateMirror(size_t bytes) {
  Buffer device = Allocate(bytes);
  void* host = nullptr;
  const cudaError_t error = cudaHostAlloc(&host, bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw CapacityError("{} of host memory could not be pinned: {}{}", FormatBytes(bytes),
                        cudaGetErrorString(error), LockedMemoryHint());
  }
  CheckCuda(error, "cudaHostAlloc");
  return std::make_unique<CudaMirror>(
      Buffer(host, bytes, [](void* data, size_t) { cudaFreeHost(data); }), std::move(device));
}

// Streams and copies of the default stream do not wait for each other, so both are waited for here.
void CudaDevice::Copy(void* target, const void* source, size_t bytes) {
  if (bytes == 0) return;
  LC_CUDA(cudaDeviceSynchronize());
  LC_CUDA(cudaMemcpy(target, source, bytes, cudaMemcpyDefault));
  LC_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

void CudaDevice::Zero(void* target, size_t bytes) {
  if (bytes == 0) return;
  LC_CUDA(cudaDeviceSynchronize());
  LC_CUDA(cudaMemset(target, 0, bytes));
  LC_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

void CudaDevice::Upload(void* target, const void* host, size_t bytes) { Copy(target, host, bytes); }
void CudaDevice::Download(void* host, const void* source, size_t bytes) {
  Copy(host, source, bytes);
}
void CudaDevice::CopyWithin(void* target, const void* source, size_t bytes) {
  Copy(target, source, bytes);
}

}  // namespace litecache
