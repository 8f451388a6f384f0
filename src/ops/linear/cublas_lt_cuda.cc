#include "ops/linear/cublas_lt_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <string>

#include "device/cuda/open_library.h"
#include "device/device_error.h"

namespace litecache::ops::cuda {
namespace {

// The functions used are the same in versions 12 and 13.
void* Open() {
  std::string why;
  if (void* library = OpenCudaLibrary({"libcublasLt.so.13", "libcublasLt.so.12"}, &why)) {
    return library;
  }
  throw DeviceError(fmt::format(
      "matrix products on the GPU need cuBLASLt (libcublasLt.so.13 or .12): {}; install cuBLAS of "
      "CUDA 13 or 12 (for the Python package: pip install 'litecache-llm[cuda]'), or name its "
      "toolkit's folder in CUDA_HOME",
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
