// Host memory the GPU can reach: mapped, touched by several threads, then registered.
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
// Below this size one thread touches the pages before several threads would have started.
constexpr size_t kTouchAlone = size_t{64} << 20;

size_t RoundUp(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

void Unpin(void* data, size_t bytes) {
  cudaHostUnregister(data);
  munmap(data, RoundUp(bytes));
}

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
// the sockets, which other programs share.
void Touch(std::byte* data, size_t bytes) {
  const std::optional<int> node = NodeOfGpu();
  std::vector<int> near;  // CPUs near the GPU; empty: any
  if (node && !PreferNumaNode(data, bytes, *node)) near = CpusOfNumaNode(*node);
  const auto touch = [&near](std::byte* begin, std::byte* end) {
    if (!near.empty()) RunOnCpus(near);
    for (; begin < end; begin += kHugePage) *begin = std::byte{0};
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

void* Pin(size_t bytes) {
  const size_t size = RoundUp(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw CapacityError("cannot allocate {} of host memory: {}", FormatBytes(bytes),
                        std::strerror(errno));
  }
  madvise(data, size, MADV_HUGEPAGE);
  Touch(static_cast<std::byte*>(data), size);
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
    Unpin(data, bytes);
    throw DeviceError(
        "this system is not supported: pinned host memory has different addresses on host and GPU");
  }
  return data;
}

// Never destroyed: buffers in static objects may be freed at the program's end.
PinnedArenas& Arenas() {
  constexpr uint64_t kSpare = uint64_t{8} << 30;  // for memory outside of arenas
  static PinnedArenas* const arenas = new PinnedArenas(
      {.pin = [] { return static_cast<std::byte*>(Pin(PinnedArenas::kArenaBytes)); },
       .unpin = [](std::byte* arena) { Unpin(arena, PinnedArenas::kArenaBytes); },
       .room =
           [] { return CpuDevice(1).Info().free_memory >= PinnedArenas::kArenaBytes + kSpare; }});
  return *arenas;
}

void FreePinned(void* data, size_t bytes) {
  if (!Arenas().Give(data)) Unpin(data, bytes);
}

}  // namespace

KeepPinned::KeepPinned() { Arenas().Keep(); }
KeepPinned::~KeepPinned() { Arenas().Forget(); }
void KeepPinned::Drop() { Arenas().Drop(); }
size_t KeepPinned::bytes() { return Arenas().pinned(); }

DeviceInfo PinnedHost::Info() const { return CpuDevice(1).Info(); }

Buffer PinnedHost::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = Arenas().Take(RoundUp(bytes));
  if (data == nullptr) data = Pin(bytes);
  return {data, bytes, FreePinned};
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
