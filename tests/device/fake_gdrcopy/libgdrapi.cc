// A libgdrapi.so.2 (GDRCopy 2) for machines whose kernel has no gdrdrv. A mapping is host memory
// that a thread copies to the GPU repeatedly: data written there arrive in the order in which they
// were written, as through the GPU's aperture, only later.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "device/fake_gdrcopy/state.h"

namespace {

using litecache::testing::FakeGdrCopyState;

// Bytes copied together. Bytes of one block arrive in any order, so a flag must not share a block
// with the data that it announces.
constexpr size_t kBlock = size_t{32} << 10;
constexpr size_t kGpuPage = size_t{64} << 10;

FakeGdrCopyState state;

// The driver functions used. The driver is already loaded, because the program has pinned GPU
// memory.
struct Driver {
  CUresult (*get_context)(CUcontext*);
  CUresult (*set_context)(CUcontext);
  CUresult (*create_stream)(CUstream*, unsigned);
  CUresult (*destroy_stream)(CUstream);
  CUresult (*synchronize)(CUstream);
  CUresult (*copy)(CUdeviceptr, const void*, size_t, CUstream);
  CUresult (*allocate)(void**, size_t, unsigned);
  CUresult (*free)(void*);
};

template <class Function>
void Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) std::abort();
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver found{};
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) std::abort();
    Find(library, "cuCtxGetCurrent", &found.get_context);
    Find(library, "cuCtxSetCurrent", &found.set_context);
    Find(library, "cuStreamCreate", &found.create_stream);
    Find(library, "cuStreamDestroy_v2", &found.destroy_stream);
    Find(library, "cuStreamSynchronize", &found.synchronize);
    Find(library, "cuMemcpyHtoDAsync_v2", &found.copy);
    Find(library, "cuMemHostAlloc", &found.allocate);
    Find(library, "cuMemFreeHost", &found.free);
    return found;
  }();
  return driver;
}

// GPU memory that a program has pinned, and its mapping, in the context of the pinning thread.
class Pinned {
 public:
  Pinned(CUdeviceptr device, size_t bytes) : device_(device), bytes_(bytes) {
    TheDriver().get_context(&context_);
  }

  // Null if the driver refuses.
  void* Map() {
    if (TheDriver().allocate(&copied_, bytes_, 0) != CUDA_SUCCESS) return nullptr;
    std::memset(copied_, 0, bytes_);
    void* const host =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
      TheDriver().free(copied_);
      return nullptr;
    }
    host_ = static_cast<std::byte*>(host);
    thread_ = std::thread([this] { Run(); });
    return host_;
  }
  void Unmap() {
    ends_ = true;
    thread_.join();
    munmap(host_, bytes_);
    TheDriver().free(copied_);
  }

 private:
  // Runs until the mapping ends or the driver fails: in that case nothing arrives, which a test
  // notices.
  void Run() {
    CUstream stream = nullptr;
    if (TheDriver().set_context(context_) != CUDA_SUCCESS ||
        TheDriver().create_stream(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
      return;
    }
    while (!ends_ && Copy(stream)) {
    }
    TheDriver().destroy_stream(stream);
  }

  // Reads from the end to the beginning and copies from the beginning to the end: a flag after the
  // data that it announces is read before the data and arrives after it.
  bool Copy(CUstream stream) {
    std::vector<size_t> changed;
    std::byte* const copied = static_cast<std::byte*>(copied_);
    for (size_t at = bytes_; at > 0; at -= kBlock) {
      std::byte* const block = copied + at - kBlock;
      std::memcpy(block_, host_ + at - kBlock, kBlock);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (std::memcmp(block, block_, kBlock) == 0) continue;
      std::memcpy(block, block_, kBlock);
      changed.push_back(at - kBlock);
    }
    for (size_t i = changed.size(); i-- > 0;) {
      if (TheDriver().copy(device_ + changed[i], copied + changed[i], kBlock, stream) !=
          CUDA_SUCCESS) {
        return false;
      }
    }
    return TheDriver().synchronize(stream) == CUDA_SUCCESS;
  }

  const CUdeviceptr device_;
  const size_t bytes_;
  CUcontext context_ = nullptr;
  void* copied_ = nullptr;  // pinned; the data that the GPU has received
  std::byte* host_ = nullptr;
  std::byte block_[kBlock] = {};
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

struct Handle {
  unsigned long value;
};

Pinned* Of(Handle handle) { return reinterpret_cast<Pinned*>(handle.value); }

}  // namespace

extern "C" {

FakeGdrCopyState* FakeGdrCopyStateOfLibrary() { return &state; }

void* gdr_open() {
  if (!state.has_driver) return nullptr;
  ++state.opened;
  return &state;
}

int gdr_close(void*) {
  --state.opened;
  return 0;
}

// Like the kernel's driver, accepts only whole pages of the GPU.
int gdr_pin_buffer(void*, unsigned long address, size_t bytes, uint64_t, uint32_t, Handle* handle) {
  if (state.pin_error != 0) return state.pin_error;
  if (address % kGpuPage != 0 || bytes == 0 || bytes % kGpuPage != 0) return EINVAL;
  handle->value = reinterpret_cast<unsigned long>(new Pinned(address, bytes));
  ++state.pinned;
  return 0;
}

int gdr_unpin_buffer(void*, Handle handle) {
  delete Of(handle);
  --state.pinned;
  return 0;
}

int gdr_map(void*, Handle handle, void** mapped, size_t) {
  if (state.map_error != 0) return state.map_error;
  *mapped = Of(handle)->Map();
  if (*mapped == nullptr) return ENOMEM;
  ++state.mapped;
  return 0;
}

int gdr_unmap(void*, Handle handle, void*, size_t) {
  Of(handle)->Unmap();
  --state.mapped;
  return 0;
}

}  // extern "C"
