#include "cli/version.h"

#include <fmt/core.h>

#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::cli {
namespace {

// The GPUs found, or why there are none.
std::string GpuText() {
  const CudaDevices found = FindCudaDevices();
  if (found.devices.empty()) return fmt::format("none ({})", found.reason);
  std::string text;
  for (const DeviceInfo& device : found.devices) {
    text += fmt::format("{}{}, {}", text.empty() ? "" : "; ", device.name,
                        FormatBytes(device.total_memory));
  }
  return text;
}

}  // namespace

std::string VersionText() {
  const std::string cuda = CudaOfBuild();
  const std::string commit = GitCommit().empty() ? "" : fmt::format(" ({})", GitCommit());
  return fmt::format("litecache {}{}\ncompiler: {}\nCUDA: {}\ndevice: {}\nGPUs: {}\n", LC_VERSION,
                     commit,
#if defined(__clang__)
                     "clang " __clang_version__,
#else
                     "gcc " __VERSION__,
#endif
                     cuda.empty() ? "none" : cuda, CpuDevice().Info().name, GpuText());
}

}  // namespace litecache::cli
