// Selects the implementation of a product: one of the GEMVs or cuBLASLt.
#include "ops/linear/linear_cuda.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "device/cuda/cuda_device.h"
#include "ops/dense/activation_cuda.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/quantized/gemv_cuda.h"
#include "ops/linear/quantized/linear_cuda.h"

namespace litecache::ops::cuda {
namespace {

void CheckShapes(const MatrixView& x, const MatrixView& weight, const MatrixView& y,
                 Epilogue epilogue) {
  LC_CHECK(weight.dtype == DType::kF32 || weight.dtype == DType::kBF16 ||
           (weight.dtype == DType::kBlocks && weight.format != nullptr));
  const DType wanted = weight.dtype == DType::kBlocks ? DType::kBF16 : weight.dtype;
  LC_CHECK(x.dtype == wanted, "x {}, weight {}", Name(x.dtype), Name(weight.dtype));
  // cuBLASLt has no product of f32 with a bf16 result.
  LC_CHECK(y.dtype == DType::kF32 ||
           (y.dtype == DType::kBF16 && x.dtype == DType::kBF16 && epilogue == Epilogue::kStore));
  LC_CHECK(x.rows == y.rows && x.cols == weight.cols && y.cols == weight.rows,
           "x [{}, {}], weight [{}, {}], y [{}, {}]", x.rows, x.cols, weight.rows, weight.cols,
           y.rows, y.cols);
  LC_CHECK(x.cols >= 1 && x.stride >= x.cols && weight.stride >= weight.cols && y.stride >= y.cols);
}

// Before sm_90 (gemv_cuda.h): cuBLASLt needs a launch for each part, the GEMV one for all. For
// parts of this size and larger, cuBLASLt is faster with any number of rows. On an H200, in us with
// 1 and with 16 rows, for Llama-3-8B's products (MiB of a part; GEMV, cuBLASLt): k (8) 6.7, 7.6 and
// 6.2, 7.8; q, k and v (16 on average) 20.7, 28.6 and 22.4, 29.3; o (32) 15.4, 12.5 and 14.1, 13.3;
// down (112) 53.6, 32.2 and 43.8, 33.2; gate and up (112 each) 67.7, 61.6 and 102, 62; logits
// (1002) 285, 249 and 424, 257.
constexpr int64_t kLibraryBytes = int64_t{24} << 20;

bool GemvServes(const MatrixView& x, std::span<const LinearPart> parts) {
  if (x.dtype != DType::kBF16 || x.rows > kMaxGemvRows) return false;
  int64_t outputs = 0;
  for (const auto& [weight, bias, y] : parts) {
    // The library would round a bf16 y before the bias is added.
    if (bias != nullptr && y.dtype == DType::kBF16) return true;
    outputs += weight.rows;
  }
  return outputs * x.cols * 2 < kLibraryBytes * static_cast<int64_t>(parts.size());
}

// State that a stream's products keep.
struct Products {
  std::optional<Gemm> library;
  std::optional<TileClaims> claims;  // on streams that have ever shared the GPU
  bool shares = false;               // whether it is shared at present
  UnpackedSlice slice;
};

Products& ProductsOf(CudaStream& stream) {
  if (stream.products() == nullptr) stream.set_products(std::make_shared<Products>());
  return *static_cast<Products*>(stream.products());
}

Gemm& GemmOf(CudaStream& stream) {
  Products& products = ProductsOf(stream);
  if (!products.library) products.library.emplace();
  return *products.library;
}

// Whether the ring serves a product; on a batch-invariant stream, whether it does for any
// number of rows that a GEMV takes.
bool RingServes(const CudaStream& stream, MatrixView x, std::span<const LinearPart> parts) {
  if (stream.batch_invariant() && x.rows <= kMaxGemvRows) x.rows = kMaxGemvRows;
  return RingGemvServes(x, parts);
}

bool NeedsBatchInvariance(const CudaStream& stream, const MatrixView& x) {
  return stream.batch_invariant() && x.dtype == DType::kBF16 && x.rows <= kMaxGemvRows;
}

TileClaims* ClaimsOf(CudaStream& stream) {
  Products& products = ProductsOf(stream);
  return products.shares ? &*products.claims : nullptr;
}

bool SameKind(const MatrixView& a, const MatrixView& b) {
  if (a.dtype != DType::kBlocks || b.dtype != DType::kBlocks) return a.dtype == b.dtype;
  return SamePackedLayout(*a.format, *b.format);
}

// Parts whose weights are packed blocks of one layout.
void BlocksLinear(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                  Epilogue epilogue) {
  if (PiecewiseServes(stream, x)) return PiecewiseLinear(stream, x, parts, epilogue);
  for (const LinearPart& part : parts) {
    UnpackedLinear(stream, GemmOf(stream), ProductsOf(stream).slice, x, part, nullptr, epilogue);
  }
}

// Parts whose weights are numbers.
void NumbersLinear(CudaStream& cuda, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue) {
  const bool ring = RingServes(cuda, x, parts);
  if (ring || NeedsBatchInvariance(cuda, x) || GemvServes(x, parts)) {
    while (!parts.empty()) {
      const auto some = parts.first(std::min<size_t>(parts.size(), kMaxGemvParts));
      ring ? RingGemv(cuda, x, some, epilogue, ClaimsOf(cuda)) : Gemv(cuda, x, some, epilogue);
      parts = parts.subspan(some.size());
    }
    return;
  }
  for (const auto& [weight, bias, y] : parts) {
    if (y.cols > 0) GemmOf(cuda).Run(cuda, x, weight, {.f32 = bias}, y, epilogue);
  }
}

}  // namespace

void PrepareLinear(Stream& stream) { GemmOf(AsCuda(stream)); }

void PrepareUnpacking(Stream& stream) { ProductsOf(AsCuda(stream)).slice.Reserve(); }

void ShareGpu(Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  Products& products = ProductsOf(cuda);
  if (!products.claims) products.claims.emplace(cuda);
  products.shares = true;
}

void UnshareGpu(Stream& stream) { ProductsOf(AsCuda(stream)).shares = false; }

void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue) {
  for (const auto& [weight, bias, y] : parts) CheckShapes(x, weight, y, epilogue);
  if (x.rows == 0) return;
  CudaStream& cuda = AsCuda(stream);
  while (!parts.empty()) {
    const MatrixView& first = parts[0].weight;
    size_t count = 1;
    while (count < parts.size() && SameKind(first, parts[count].weight)) ++count;
    const auto same = parts.first(count);
    first.dtype == DType::kBlocks ? BlocksLinear(cuda, x, same, epilogue)
                                  : NumbersLinear(cuda, x, same, epilogue);
    parts = parts.subspan(count);
  }
}

void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts) {
  CudaStream& cuda = AsCuda(stream);
  for (const auto& [part, rounded] : parts) {
    CheckShapes(x, part.weight, part.y, Epilogue::kStore);
    LC_CHECK(part.y.dtype == DType::kBF16 && (part.bias == nullptr) == (rounded == nullptr));
  }
  if (x.rows == 0) return;
  const auto numbers = [](const RoundedPart& part) {
    return part.part.weight.dtype != DType::kBlocks;
  };
  if (parts.size() == 2 && parts[0].part.y.cols > 0 && std::ranges::all_of(parts, numbers) &&
      GemmOf(cuda).RunPair(cuda, x, parts[0], parts[1])) {
    return;
  }
  for (const auto& [part, rounded] : parts) {
    if (part.y.cols == 0) continue;
    if (part.weight.dtype == DType::kBlocks) {
      if (PiecewiseServes(cuda, x)) {
        PiecewiseLinear(cuda, x, {&part, 1}, Epilogue::kStore);
        continue;
      }
      UnpackedLinear(cuda, GemmOf(cuda), ProductsOf(cuda).slice, x, part, rounded,
                     Epilogue::kStore);
      continue;
    }
    GemmOf(cuda).Run(cuda, x, part.weight, {.f32 = part.bias, .bf16 = rounded}, part.y,
                     Epilogue::kStore);
  }
}

void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up,
                 const GateFunction& function) {
  const LinearPart parts[] = {gate, up};
  for (const auto& [weight, bias, y] : parts) CheckShapes(x, weight, y, Epilogue::kStore);
  LC_CHECK(gate.y.cols == up.y.cols);
  if (x.rows == 0) return;
  CudaStream& cuda = AsCuda(stream);
  const bool blocks = gate.weight.dtype == DType::kBlocks || up.weight.dtype == DType::kBlocks;
  if (blocks && SameKind(gate.weight, up.weight) && PiecewiseServes(cuda, x)) {
    return PiecewiseGatedLinear(cuda, x, gate, up, function);
  }
  if (!blocks && RingServes(cuda, x, parts)) {
    return RingGatedGemv(cuda, x, gate, up, function, ClaimsOf(cuda));
  }
  cuda::Linear(stream, x, parts, Epilogue::kStore);
  cuda::GateMul(stream, gate.y, up.y, gate.y, function);
}

}  // namespace litecache::ops::cuda
