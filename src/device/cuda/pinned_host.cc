// Host memory the GPU can reach: registered, or managed memory that stays on the host.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/memory_limits.h"
#include "device/cpu/numa.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "device/device_error.h"
#include "device/keep_pinned.h"
#include "device/pinned_arenas.h"

namespace litecache {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;
// Below this size one thread touches the pages before several threads would have started.
constexpr size_t kTouchAlone = size_t{64} << 20;

size_t RoundUp(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// The NUMA node of the thread's GPU; no value if it is unknown or the machine has only one.
std::optional<int> NodeOfGpu() {
  int gpu = 0;
  char bus_id[32] = {};
  if (cudaGetDevice(&gpu) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), gpu) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  return NumaNodeOfPci(bus_id);
}

// The first touch takes most of the time of allocating a page, and decides which NUMA node holds it
// unless a preference has been set. Memory of the other socket's node is read over the link between
// the sockets, which other programs share. near: CPUs for the threads that touch; empty: any. A
// byte of every `stride` bytes is written.
void Touch(std::byte* data, size_t bytes, size_t stride, const std::vector<int>& near) {
  const auto touch = [&near, stride](std::byte* begin, std::byte* end) {
    if (!near.empty()) RunOnCpus(near);
    for (; begin < end; begin += stride) *begin = std::byte{0};
  };
  const size_t threads =
      bytes < kTouchAlone ? 1 : std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
  if (threads == 1 && near.empty()) return touch(data, data + bytes);
  const size_t part = RoundUp(bytes / threads);
  std::vector<std::jthread> workers;
  for (size_t begin = 0; begin < bytes; begin += part) {
    workers.emplace_back(touch, data + begin, data + std::min(begin + part, bytes));
  }
}

std::vector<int> CpusOfNode(std::optional<int> node) {
  return node ? CpusOfNumaNode(*node) : std::vector<int>{};
}

void Unregister(void* data, size_t bytes) {
  cudaHostUnregister(data);
  munmap(data, RoundUp(bytes));
}

void* Register(size_t bytes) {
  const size_t size = RoundUp(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw CapacityError("cannot allocate {} of host memory: {}", FormatBytes(bytes),
                        std::strerror(errno));
  }
  madvise(data, size, MADV_HUGEPAGE);
  const std::optional<int> node = NodeOfGpu();
  const bool placed = node && PreferNumaNode(data, size, *node);
  Touch(static_cast<std::byte*>(data), size, kHugePage, CpusOfNode(placed ? std::nullopt : node));
  const cudaError_t error =
      cudaHostRegister(data, size, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();
    munmap(data, size);
    throw CapacityError(
        "{} of host memory could not be pinned for the GPU: {}{}; lower host_memory or "
        "memory, or see the kernel's log (dmesg)",
        FormatBytes(bytes), cudaGetErrorString(error), LockedMemoryHint());
  }
  // Operations use the same pointer to the store on the host and on the GPU.
  void* mapped = nullptr;
  const cudaError_t found = cudaHostGetDevicePointer(&mapped, data, 0);
  if (found != cudaSuccess || mapped != data) {
    Unregister(data, bytes);
    throw DeviceError(
        "this system is not supported: pinned host memory has different addresses on host and GPU");
  }
  return data;
}

// Whether host and GPU may use managed memory at the same time, without moving it.
bool HasManagedMemory() {
  int gpu = 0, concurrent = 0;
  LC_CUDA(cudaGetDevice(&gpu));
  LC_CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, gpu));
  return concurrent != 0;
}

void FreeManaged(void* data, size_t) { cudaFree(data); }

#if CUDART_VERSION >= 13000
cudaMemLocation OnHost() { return {cudaMemLocationTypeHost, 0}; }
cudaMemLocation OnGpu(int gpu) { return {cudaMemLocationTypeDevice, gpu}; }
#else
int OnHost() { return cudaCpuDeviceId; }
int OnGpu(int gpu) { return gpu; }
#endif

// Pages are mapped to the GPU as they are touched: 8 GiB take 1.1 s, and 1.5 s if they are mapped
// afterwards. Each small page has to be touched, or the others of its huge page are not there yet
// when the GPU first reads them.
void* AllocateManaged(size_t bytes) {
  const size_t size = RoundUp(bytes);
  int gpu = 0;
  LC_CUDA(cudaGetDevice(&gpu));
  void* data = nullptr;
  cudaError_t error = cudaMallocManaged(&data, size);
  if (error == cudaSuccess) {
    error = cudaMemAdvise(data, size, cudaMemAdviseSetPreferredLocation, OnHost());
  }
  if (error == cudaSuccess) {
    error = cudaMemAdvise(data, size, cudaMemAdviseSetAccessedBy, OnGpu(gpu));
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    cudaFree(data);
    throw CapacityError("cannot allocate {} of host memory for the GPU: {}", FormatBytes(bytes),
                        cudaGetErrorString(error));
  }
  Touch(static_cast<std::byte*>(data), size, kSmallPage, CpusOfNode(NodeOfGpu()));
  return data;
}

using Allocate = void* (*)(size_t bytes);
using Free = void (*)(void* data, size_t bytes);

PinnedArenas* NewArenas(Allocate allocate, Free free) {
  constexpr uint64_t kSpare = uint64_t{8} << 30;  // for memory outside of arenas
  return new PinnedArenas(
      {.pin = [allocate] { return static_cast<std::byte*>(allocate(PinnedArenas::kArenaBytes)); },
       .unpin = [free](std::byte* arena) { free(arena, PinnedArenas::kArenaBytes); },
       .room =
           [] { return CpuDevice(1).Info().free_memory >= PinnedArenas::kArenaBytes + kSpare; }});
}

// Never destroyed: buffers in static objects may be freed at the program's end.
PinnedArenas& Registered() {
  static PinnedArenas* const arenas = NewArenas(Register, Unregister);
  return *arenas;
}
PinnedArenas& Managed() {
  static PinnedArenas* const arenas = NewArenas(AllocateManaged, FreeManaged);
  return *arenas;
}

void FreeRegistered(void* data, size_t bytes) {
  if (!Registered().Give(data)) Unregister(data, bytes);
}

void GiveManaged(void* data, size_t bytes) {
  if (!Managed().Give(data)) FreeManaged(data, bytes);
}

}  // namespace

KeepPinned::KeepPinned() {
  Registered().Keep();
  Managed().Keep();
}
KeepPinned::~KeepPinned() {
  Registered().Forget();
  Managed().Forget();
}
void KeepPinned::Drop() {
  Registered().Drop();
  Managed().Drop();
}
size_t KeepPinned::bytes() { return Registered().pinned() + Managed().pinned(); }

DeviceInfo PinnedHost::Info() const { return CpuDevice(1).Info(); }

Buffer PinnedHost::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  const bool managed = reader_ == ReadBy::kKernels && HasManagedMemory();
  void* data = (managed ? Managed() : Registered()).Take(RoundUp(bytes));
  if (data == nullptr) data = managed ? AllocateManaged(bytes) : Register(bytes);
  return {data, bytes, managed ? GiveManaged : FreeRegistered};
}

std::unique_ptr<Mirror> PinnedHost::CreateMirror(size_t bytes) { return gpu_.CreateMirror(bytes); }

// The GPU writes this memory as well, so copies wait for it.
void PinnedHost::Upload(void* target, const void* host, size_t bytes) {
  CopyWithin(target, host, bytes);
}
void PinnedHost::Download(void* host, const void* source, size_t bytes) {
  CopyWithin(host, source, bytes);
}
void PinnedHost::CopyWithin(void* target, const void* source, size_t bytes) {
  LC_CUDA(cudaDeviceSynchronize());
  std::memcpy(target, source, bytes);
}

std::unique_ptr<Stream> PinnedHost::CreateStream() { return gpu_.CreateStream(); }

}  // namespace litecache
