// The role "score" on a GPU: a retriever's weights in device memory, and its operations.
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
  // Encodes keys of a layer into metadata: those of k [T, kv_heads * head_dim], or, if k is null,
  // those of the rows that leave the recent window (ops/select/encode_cuda.h).
  virtual void Encode(Stream& stream, int64_t layer, const ops::cuda::StepView& step,
                      const ops::cuda::LiteCacheShape& shape,
                      const ops::cuda::LiteCacheLayer& heads, const MatrixView* k) = 0;
  virtual void Select(Stream& stream, int64_t layer, const ops::cuda::StepView& step,
                      const ops::cuda::LiteCacheShape& shape,
                      const ops::cuda::LiteCacheLayer& heads, const ops::cuda::SelectQuery& query,
                      void* scratch) = 0;
};

// Creates the GPU counterpart of `retriever`; options: the ones it was created with.
std::unique_ptr<CudaRetriever> CreateCudaRetriever(Device& device, const Layout& layout,
                                                   const KvOptions& options,
                                                   const Retriever& retriever);

}  // namespace litecache::kv
