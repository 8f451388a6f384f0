// Writes down the kernels that a program runs on NVIDIA GPUs, those of replayed graphs included, by
// CUPTI's activity records. A library that the CUDA runtime loads into any program:
//
//   CUDA_INJECTION64_PATH=build/cuda/lab/libkernel_trace.so KERNEL_TRACE=FILE COMMAND
//
// One line for each kernel, in the order in which CUPTI reports them, separated by tabs: begin and
// end in ns, stream, grid x block, registers of a thread, bytes of shared memory, name.
// kernel_trace.py shows what is in it. A step takes 2 to 4% longer while it is traced.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

std::FILE* trace = nullptr;

std::string_view NameOf(const char* mangled, std::unique_ptr<char, decltype(&std::free)>* memory) {
  int status = 0;
  memory->reset(abi::__cxa_demangle(mangled, nullptr, nullptr, &status));
  return *memory != nullptr ? memory->get() : mangled;
}

void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t used) {
  std::unique_ptr<char, decltype(&std::free)> memory(nullptr, &std::free);
  for (CUpti_Activity* record = nullptr;
       cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS;) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(trace, "%llu\t%llu\t%u\t%d,%d,%d x %d\t%d\t%d\t%s\n",
                 static_cast<unsigned long long>(kernel.start),
                 static_cast<unsigned long long>(kernel.end), kernel.streamId, kernel.gridX,
                 kernel.gridY, kernel.gridZ, kernel.blockX, kernel.registersPerThread,
                 kernel.dynamicSharedMemory + kernel.staticSharedMemory,
                 NameOf(kernel.name, &memory).data());
  }
  std::free(buffer);
}

void End() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fclose(trace);
}

}  // namespace

// Called by the CUDA runtime before its first use.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TRACE");
  trace = std::fopen(path != nullptr ? path : "kernels.tsv", "w");
  if (trace == nullptr) {
    std::perror("kernel_trace: KERNEL_TRACE");
    return 0;
  }
  if (cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "kernel_trace: CUPTI refuses to record kernels here\n");
    return 0;
  }
  return std::atexit(End) == 0;
}
