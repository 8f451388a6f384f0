#include "device/machine.h"

#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/logging.h"
#include "device/cuda/cuda_devices.h"
#ifdef LITECACHE_CUDA
#include "device/cuda/cuda_device.h"
#endif

namespace litecache {
namespace {

constexpr std::string_view kCuda = "cuda";

std::unique_ptr<Device> OpenGpu([[maybe_unused]] int index) {
#ifdef LITECACHE_CUDA
  return std::make_unique<CudaDevice>(index);
#else
  throw Unsupported(
      "device 'cuda': this program was built without CUDA; use device 'cpu', or build with "
      "-DLITECACHE_CUDA=ON");
#endif
}

// The N of "cuda:N"; 0 for "cuda".
int GpuIndex(const std::string& name) {
  int index = 0;
  if (name == kCuda) return index;
  const std::string digits = name.substr(kCuda.size() + 1);
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, index);
  if (digits.empty() || error != std::errc() || stop != end || index < 0) {
    throw InvalidArgument("device '{}': write the GPU's number after 'cuda:', e.g. cuda:0", name);
  }
  return index;
}

}  // namespace

// Where memory is allocated, its GPU becomes the thread's.
void UseInThisThread(Device& device) { device.Allocate(1); }

void UseGraphs([[maybe_unused]] Stream& stream, [[maybe_unused]] bool use) {
#ifdef LITECACHE_CUDA
  if (stream.device_type() != DeviceType::kCuda) return;
  AsCuda(stream).UseGraphs(use);
  AsCuda(stream).DropGraphs();
#endif
}

void MakeBatchInvariant([[maybe_unused]] Stream& stream) {
#ifdef LITECACHE_CUDA
  if (stream.device_type() == DeviceType::kCuda) AsCuda(stream).MakeBatchInvariant();
#endif
}

Machine OpenMachine(const std::string& name, int threads) {
  Machine machine;
  machine.cpu = std::make_unique<CpuDevice>(threads);
  if (name == "cpu") return machine;
  if (name == "auto") {
    const CudaDevices found = FindCudaDevices();
    std::string reason = found.reason;
    if (!found.devices.empty()) {
      try {
        machine.gpu = OpenGpu(0);
        return machine;
      } catch (const Error& error) {  // too old, lost, or in exclusive use by another process
        reason = error.what();
      }
    }
    if (found.driver) {
      LogWarning("running on the CPU: {}", reason);
    } else {
      LogInfo("running on the CPU: {}", reason);
    }
    return machine;
  }
  if (name != kCuda && !name.starts_with("cuda:")) {
    throw InvalidArgument("device '{}' is not 'auto', 'cpu', 'cuda' or 'cuda:N'", name);
  }
  machine.gpu = OpenGpu(GpuIndex(name));
  return machine;
}

}  // namespace litecache
