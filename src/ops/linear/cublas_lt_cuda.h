// cuBLASLt, loaded at run time: half a gigabyte that only machines with a GPU need.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <type_traits>

namespace litecache::ops::cuda {

// The functions used from the library, under their names without "cublasLt".
struct CublasLt {
  // Loads the library at the first call. Throws DeviceError naming the library if it is missing.
  static const CublasLt& Get();

  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtGetStatusString) GetStatusString;

  // Throws DeviceError for any status but success, naming the call.
  void Check(cublasStatus_t status, const char* call) const;
};

// Owning pointers to cuBLASLt's objects.
template <typename T, auto kDestroy>
struct DestroyCublasLt {
  void operator()(T* object) const { (CublasLt::Get().*kDestroy)(object); }
};
template <typename Handle, auto kDestroy>
using CublasLtOwner = std::unique_ptr<std::remove_pointer_t<Handle>,
                                      DestroyCublasLt<std::remove_pointer_t<Handle>, kDestroy>>;
using CublasLtHandle = CublasLtOwner<cublasLtHandle_t, &CublasLt::Destroy>;
using CublasLtMatmulDesc = CublasLtOwner<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy>;
using CublasLtLayout = CublasLtOwner<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy>;
using CublasLtPreference =
    CublasLtOwner<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy>;

}  // namespace litecache::ops::cuda
