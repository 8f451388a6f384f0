#include "device/cuda/sm_split.h"

#include <cuda.h>
#include <fmt/core.h>

#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/check.h"
#include "device/device_error.h"

namespace litecache {
namespace {

// The driver's functions used here, looked up at run time: the program does not link the driver.
struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetDevResource) get_resource = nullptr;
  decltype(&cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&cuGreenCtxCreate) create = nullptr;
  decltype(&cuGreenCtxStreamCreate) create_stream = nullptr;
  std::string missing;  // the first function that the driver lacks

  Driver() {
    Find("cuDeviceGet", 2000, &device_get);
    Find("cuDeviceGetDevResource", 12040, &get_resource);
    Find("cuDevSmResourceSplitByCount", 12040, &split);
    Find("cuDevResourceGenerateDesc", 12040, &describe);
    Find("cuGreenCtxCreate", 12040, &create);
    Find("cuGreenCtxStreamCreate", 12050, &create_stream);
  }

 private:
  // version: the version of CUDA that introduced the function.
  template <typename Function>
  void Find(const char* name, unsigned version, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr) {
      *function = reinterpret_cast<Function>(found);
      return;
    }
    cudaGetLastError();
    if (missing.empty()) missing = name;
  }
};

const Driver& GetDriver() {
  static const Driver driver;
  return driver;
}

}  // namespace

const SmSplit* SmSplit::Get(int device, int few, std::string* reason) {
  struct Known {
    const SmSplit* split = nullptr;
    std::string reason;
  };
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<int, int>, Known>;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known->try_emplace({device, few});
  Known& of_arguments = found->second;
  if (is_new) of_arguments.split = Create(device, few, &of_arguments.reason).release();
  if (of_arguments.split == nullptr) *reason = of_arguments.reason;
  return of_arguments.split;
}

std::unique_ptr<SmSplit> SmSplit::Create(int device, int few, std::string* reason) {
  const Driver& driver = GetDriver();
  if (!driver.missing.empty()) {
    *reason = fmt::format("the driver has no {} (it comes with CUDA 12.5)", driver.missing);
    return nullptr;
  }
  // Green contexts are parts of the primary context, which must exist.
  LC_CUDA(cudaSetDevice(device));
  LC_CUDA(cudaFree(nullptr));
  const auto ok = [&](const char* function, CUresult result) {
    if (result == CUDA_SUCCESS) return true;
    *reason = fmt::format("{} failed with error {}", function, static_cast<int>(result));
    return false;
  };
  CUdevice handle = 0;
  CUdevResource all = {}, part = {}, remaining = {};
  unsigned int groups = 1;
  // SMs are split one by one, not in the groups that thread block clusters need: pulls use no
  // clusters, and a group has more SMs than they need.
  if (!ok("cuDeviceGet", driver.device_get(&handle, device)) ||
      !ok("cuDeviceGetDevResource", driver.get_resource(handle, &all, CU_DEV_RESOURCE_TYPE_SM)) ||
      !ok("cuDevSmResourceSplitByCount",
          driver.split(&part, &groups, &all, &remaining,
                       few % 8 == 0 ? 0 : CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
                       static_cast<unsigned>(few)))) {
    return nullptr;
  }
  if (groups != 1 || 2 * remaining.sm.smCount < all.sm.smCount) {
    *reason = fmt::format("{} of {} SMs would be left", remaining.sm.smCount, all.sm.smCount);
    return nullptr;
  }
  std::unique_ptr<SmSplit> split(new SmSplit);
  split->device_ = device;
  const auto create = [&](CUdevResource resource, Part* of) {
    CUdevResourceDesc description = nullptr;
    of->sms = static_cast<int>(resource.sm.smCount);
    return ok("cuDevResourceGenerateDesc", driver.describe(&description, &resource, 1)) &&
           ok("cuGreenCtxCreate",
              driver.create(&of->context, description, handle, CU_GREEN_CTX_DEFAULT_STREAM));
  };
  if (!create(part, &split->few_) || !create(remaining, &split->rest_)) return nullptr;
  return split;
}

std::unique_ptr<CudaStream> SmSplit::CreateStream(const Part& part, bool first) const {
  int least = 0, greatest = 0;
  LC_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CUstream stream = nullptr;
  const CUresult result = GetDriver().create_stream(&stream, part.context, CU_STREAM_NON_BLOCKING,
                                                    first ? greatest : least);
  if (result != CUDA_SUCCESS) {
    throw DeviceError(
        fmt::format("cuGreenCtxStreamCreate failed with error {}", static_cast<int>(result)));
  }
  return std::make_unique<CudaStream>(device_, part.sms, stream);
}

}  // namespace litecache
