// Which of the two ways a product takes: the GEMV or cuBLASLt.
#include <algorithm>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemv.h"

namespace litecache::ops::cuda {
namespace {

void CheckShapes(const MatrixView& x, const MatrixView& weight, const MatrixView& y,
                 Epilogue epilogue) {
  LC_CHECK(weight.dtype == DType::kF32 || weight.dtype == DType::kBF16);
  LC_CHECK(x.dtype == weight.dtype, "x {}, weight {}", Name(x.dtype), Name(weight.dtype));
  // cuBLASLt has no product of f32 with a bf16 result.
  LC_CHECK(y.dtype == DType::kF32 ||
           (y.dtype == DType::kBF16 && x.dtype == DType::kBF16 && epilogue == Epilogue::kStore));
  LC_CHECK(x.rows == y.rows && x.cols == weight.cols && y.cols == weight.rows,
           "x [{}, {}], weight [{}, {}], y [{}, {}]", x.rows, x.cols, weight.rows, weight.cols,
           y.rows, y.cols);
  LC_CHECK(x.cols >= 1 && x.stride >= x.cols && weight.stride >= weight.cols && y.stride >= y.cols);
}

// From this size on cuBLASLt reads few rows' weights faster (an H200 at 1 to 16 rows: 81 to 96% of
// the memory's rate, the GEMV 50 to 84%). Below, its launch a part and its tail cost more.
constexpr int64_t kLibraryBytes = int64_t{64} << 20;

bool GemvServes(const MatrixView& x, std::span<const LinearPart> parts) {
  if (x.dtype != DType::kBF16 || x.rows > kMaxGemvRows) return false;
  int64_t outputs = 0;
  for (const auto& [weight, bias, y] : parts) {
    // The library would round a bf16 y before the bias is added.
    if (bias != nullptr && y.dtype == DType::kBF16) return true;
    outputs += weight.rows;
  }
  return outputs * x.cols * 2 < kLibraryBytes;
}

Gemm& GemmOf(CudaStream& stream) {
  if (stream.products() == nullptr) stream.set_products(std::make_shared<Gemm>());
  return *static_cast<Gemm*>(stream.products());
}

}  // namespace

void PrepareLinear(Stream& stream) { GemmOf(AsCuda(stream)); }

void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue) {
  for (const auto& [weight, bias, y] : parts) CheckShapes(x, weight, y, epilogue);
  if (x.rows == 0) return;
  if (GemvServes(x, parts)) {
    while (!parts.empty()) {
      const size_t count = std::min<size_t>(parts.size(), kMaxGemvParts);
      Gemv(stream, x, parts.first(count), epilogue);
      parts = parts.subspan(count);
    }
    return;
  }
  CudaStream& cuda = AsCuda(stream);
  for (const auto& [weight, bias, y] : parts) {
    if (y.cols > 0) GemmOf(cuda).Run(cuda, x, weight, bias, y, epilogue);
  }
}

}  // namespace litecache::ops::cuda
