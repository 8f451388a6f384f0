// The role "score" on a GPU: a retriever's weights in device memory, its operations by name.
#pragma once

#include <memory>

#include "base/matrix_view.h"
#include "device/device.h"
#include "kv/retrieve/retriever.h"
#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

class CudaRetriever {
 public:
  virtual ~CudaRetriever() = default;
  // Keys of a layer into metadata: of k [T, kv_heads * head_dim], or, where null, of the rows that
  // leave the recent window (ops/select/encode_cuda.h).
  virtual void Encode(Stream& stream, int64_t layer, const ops::cuda::StepView& step,
                      const ops::cuda::LiteCacheShape& shape,
                      const ops::cuda::LiteCacheLayer& heads, const MatrixView* k) = 0;
  virtual void Select(Stream& stream, int64_t layer, const ops::cuda::StepView& step,
                      const ops::cuda::LiteCacheShape& shape,
                      const ops::cuda::LiteCacheLayer& heads, const ops::cuda::SelectQuery& query,
                      void* scratch) = 0;
};

// The GPU's side of `retriever`, whose options these are.
std::unique_ptr<CudaRetriever> CreateCudaRetriever(Device& device, const Layout& layout,
                                                   const KvOptions& options,
                                                   const Retriever& retriever);

}  // namespace litecache::kv
