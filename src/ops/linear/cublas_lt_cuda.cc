#include "ops/linear/cublas_lt_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "device/device_error.h"

namespace litecache::ops::cuda {
namespace {

// First the loader's search path, then the default directories of the CUDA toolkit. The functions
// used are the same in versions 12 and 13.
std::vector<std::string> Candidates() {
  std::vector<std::string> folders = {""};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    folders.push_back(std::string(home) + "/lib64/");
    folders.push_back(std::string(home) + "/lib/");
  }
  folders.insert(folders.end(), {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"});
  std::vector<std::string> paths;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    for (const std::string& folder : folders) paths.push_back(folder + name);
  }
  return paths;
}

void* Open() {
  std::string why;
  for (const std::string& path : Candidates()) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (why.empty()) why = dlerror();
  }
  throw DeviceError(fmt::format(
      "matrix products on the GPU need cuBLASLt (libcublasLt.so.13 or .12): {}; install "
      "cuBLAS of CUDA 13 or 12, or name its toolkit's folder in CUDA_HOME",
      why));
}

CublasLt LoadLibrary() {
  void* library = Open();  // stays open: its kernels run until the program ends
  CublasLt lt{};
  const auto find = [&](auto& function, const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr) {
      throw DeviceError(fmt::format("cuBLASLt has no {}: version 12 or 13 is needed", name));
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(lt.Create, "cublasLtCreate");
  find(lt.Destroy, "cublasLtDestroy");
  find(lt.Matmul, "cublasLtMatmul");
  find(lt.MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.MatmulDescCreate, "cublasLtMatmulDescCreate");
  find(lt.MatmulDescDestroy, "cublasLtMatmulDescDestroy");
  find(lt.MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
  find(lt.MatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
  find(lt.MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
  find(lt.MatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute");
  find(lt.MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
  find(lt.MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.GetStatusString, "cublasLtGetStatusString");
  return lt;
}

}  // namespace

const CublasLt& CublasLt::Get() {
  static const CublasLt lt = LoadLibrary();  // tried again after a failure
  return lt;
}

void CublasLt::Check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("cublasLt{}: {}", call, GetStatusString(status)));
}

}  // namespace litecache::ops::cuda
