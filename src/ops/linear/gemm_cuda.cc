#include "ops/linear/gemm_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "device/cuda/allocated.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "ops/linear/cublas_lt_cuda.h"
#include "ops/linear/linear_scratch_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr size_t kWorkspaceBytes = LinearScratchBytes();
// Last chunks of prompts have any number of rows, so the chosen algorithms are dropped when there
// are too many.
constexpr size_t kMaxPlans = 4096;

cudaDataType_t CudaType(DType dtype) {
  LC_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

// The alignment that cuBLASLt may assume; its default is 256 bytes.
uint32_t AlignmentOf(const MatrixView& m) {
  const auto address = reinterpret_cast<uintptr_t>(m.data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

void FreeWorkspace(void* data) {
  cudaFree(data);
  CountGpuMemory(-static_cast<int64_t>(kWorkspaceBytes));
}

}  // namespace

struct Gemm::Plan {
  CublasLtMatmulDesc desc;
  CublasLtLayout weight, x, y;
  cublasLtMatmulAlgo_t algo;
  size_t workspace = 0;
};

struct Gemm::State {
  CublasLtHandle handle;
  std::unique_ptr<void, void (*)(void*)> workspace{nullptr, FreeWorkspace};
  std::map<Key, std::unique_ptr<Plan>> plans;  // null: there is no algorithm
};

Gemm::Gemm() : state_(std::make_unique<State>()) {
  const CublasLt& lt = CublasLt::Get();
  cublasLtHandle_t handle = nullptr;
  lt.Check(lt.Create(&handle), "Create");
  state_->handle.reset(handle);
  void* workspace = nullptr;
  LC_CUDA(cudaMalloc(&workspace, kWorkspaceBytes));
  state_->workspace.reset(workspace);
  CountGpuMemory(static_cast<int64_t>(kWorkspaceBytes));
}

Gemm::~Gemm() = default;

Gemm::Plan* Gemm::PlanFor(const Key& key) {
  if (const auto found = state_->plans.find(key); found != state_->plans.end()) {
    return found->second.get();
  }
  const auto& [rows, out, in, x_stride, weight_stride, y_stride, x_type, y_type, x_alignment,
               weight_alignment, y_alignment, add, bias, pair] = key;
  const CublasLt& lt = CublasLt::Get();
  auto plan = std::make_unique<Plan>();
  // f32 elements are also multiplied in f32: TF32 would have to be requested by its own type.
  cublasLtMatmulDesc_t desc = nullptr;
  lt.Check(lt.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
  plan->desc.reset(desc);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    lt.Check(lt.MatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
             "MatmulDescSetAttribute");
  };
  // cuBLASLt is column-major: y^T [out, rows] = weight [out, in] x^T [in, rows].
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CudaType(y_type));
    if (pair) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, int64_t{out});
  }
  const auto layout = [&](CublasLtLayout& owner, DType dtype, int64_t height, int64_t width,
                          int64_t stride, bool shared = false) {
    cublasLtMatrixLayout_t made = nullptr;
    lt.Check(lt.MatrixLayoutCreate(&made, CudaType(dtype), static_cast<uint64_t>(height),
                                   static_cast<uint64_t>(width), stride),
             "MatrixLayoutCreate");
    owner.reset(made);
    if (!pair) return;
    // The matrices are assumed to be adjacent until a call passes their addresses.
    const int32_t batch = 2;
    const int64_t apart = shared ? 0 : width * stride;
    lt.Check(lt.MatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                         sizeof(batch)),
             "MatrixLayoutSetAttribute");
    lt.Check(lt.MatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart,
                                         sizeof(apart)),
             "MatrixLayoutSetAttribute");
  };
  layout(plan->weight, x_type, in, out, weight_stride);
  layout(plan->x, x_type, in, rows, x_stride, /*shared=*/true);
  layout(plan->y, y_type, out, rows, y_stride);

  cublasLtMatmulPreference_t made = nullptr;
  lt.Check(lt.MatmulPreferenceCreate(&made), "MatmulPreferenceCreate");
  const CublasLtPreference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.Check(lt.MatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
             "MatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // With a split depth, partial sums are added in f32, never in bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, weight_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment);

  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      lt.MatmulAlgoGetHeuristic(state_->handle.get(), desc, plan->weight.get(), plan->x.get(),
                                plan->y.get(), plan->y.get(), made, 1, &result, &count);
  const bool found = status == CUBLAS_STATUS_SUCCESS && count == 1;
  if (!found && status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) {
    lt.Check(status, "MatmulAlgoGetHeuristic");
  }
  plan->algo = result.algo;
  plan->workspace = result.workspaceSize;
  if (state_->plans.size() >= kMaxPlans) state_->plans.clear();
  return (state_->plans[key] = found ? std::move(plan) : nullptr).get();
}

void Gemm::Run(CudaStream& stream, const MatrixView& x, const MatrixView& weight,
               const GemmBias& bias, const MatrixView& y, Epilogue epilogue) {
  const CublasLt& lt = CublasLt::Get();
  const bool add = epilogue == Epilogue::kAdd;
  const auto plan_for = [&](bool with_bias) {
    return PlanFor({x.rows, weight.rows, x.cols, x.stride, weight.stride, y.stride, x.dtype,
                    y.dtype, AlignmentOf(x), AlignmentOf(weight), AlignmentOf(y), add, with_bias,
                    /*pair=*/false});
  };
  // cuBLASLt's epilogue takes a bias of y's dtype only.
  Plan* plan = nullptr;
  const void* same = y.dtype == DType::kF32 ? static_cast<const void*>(bias.f32) : bias.bf16;
  bool with_bias = same != nullptr;
  if (with_bias) plan = plan_for(true);
  if (plan == nullptr) {
    with_bias = false;
    plan = plan_for(false);
  }
  if (plan == nullptr) {
    throw DeviceError(
        fmt::format("cuBLASLt has no algorithm for x [{}, {}] of {}, weight [{}, {}], "
                    "strides {}, {} and {}",
                    x.rows, x.cols, Name(x.dtype), weight.rows, weight.cols, x.stride,
                    weight.stride, y.stride));
  }
  if (with_bias) {
    lt.Check(lt.MatmulDescSetAttribute(plan->desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &same,
                                       sizeof(same)),
             "MatmulDescSetAttribute");
  }
  const float alpha = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  lt.Check(
      lt.Matmul(state_->handle.get(), plan->desc.get(), &alpha, weight.data, plan->weight.get(),
                x.data, plan->x.get(), &beta, y.data, plan->y.get(), y.data, plan->y.get(),
                &plan->algo, state_->workspace.get(), kWorkspaceBytes, stream.handle()),
      "Matmul");
  if (bias.f32 != nullptr && !with_bias) AddBias(stream, bias.f32, y);
}

bool Gemm::RunPair(CudaStream& stream, const MatrixView& x, const RoundedPart& first,
                   const RoundedPart& second) {
  const auto& [weight, bias, y] = first.part;
  const auto& [other_weight, other_bias, other_y] = second.part;
  const bool with_bias = first.rounded != nullptr;
  if (weight.rows != other_weight.rows || weight.stride != other_weight.stride ||
      y.stride != other_y.stride || with_bias != (second.rounded != nullptr)) {
    return false;
  }
  const auto between = [](const void* from, const void* to, int64_t* elements) {
    const int64_t bytes = static_cast<const std::byte*>(to) - static_cast<const std::byte*>(from);
    *elements = bytes / 2;
    return bytes > 0 && bytes % 16 == 0;
  };
  int64_t weights = 0, biases = 0, outputs = 0;
  if (!between(weight.data, other_weight.data, &weights) ||
      !between(y.data, other_y.data, &outputs) ||
      (with_bias && !between(first.rounded, second.rounded, &biases))) {
    return false;
  }
  Plan* plan =
      PlanFor({x.rows, weight.rows, x.cols, x.stride, weight.stride, y.stride, x.dtype, y.dtype,
               AlignmentOf(x), std::min(AlignmentOf(weight), AlignmentOf(other_weight)),
               std::min(AlignmentOf(y), AlignmentOf(other_y)), /*add=*/false, with_bias,
               /*pair=*/true});
  if (plan == nullptr) return false;
  const CublasLt& lt = CublasLt::Get();
  const auto apart = [&](cublasLtMatrixLayout_t layout, int64_t elements) {
    lt.Check(lt.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &elements, sizeof(elements)),
             "MatrixLayoutSetAttribute");
  };
  apart(plan->weight.get(), weights);
  apart(plan->y.get(), outputs);
  if (with_bias) {
    lt.Check(lt.MatmulDescSetAttribute(plan->desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &first.rounded, sizeof(first.rounded)),
             "MatmulDescSetAttribute");
    lt.Check(lt.MatmulDescSetAttribute(plan->desc.get(), CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE,
                                       &biases, sizeof(biases)),
             "MatmulDescSetAttribute");
  }
  const float alpha = 1.0f, beta = 0.0f;
  lt.Check(
      lt.Matmul(state_->handle.get(), plan->desc.get(), &alpha, weight.data, plan->weight.get(),
                x.data, plan->x.get(), &beta, y.data, plan->y.get(), y.data, plan->y.get(),
                &plan->algo, state_->workspace.get(), kWorkspaceBytes, stream.handle()),
      "Matmul");
  return true;
}

}  // namespace litecache::ops::cuda
