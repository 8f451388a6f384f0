#include "device/cuda/copy_batch.h"

#include <algorithm>

#include "device/cuda/check.h"

namespace litecache {

void CudaCopyBatch::Add(void* target, const void* source, size_t bytes) {
  if (bytes == 0) return;
  targets_.push_back(target);
  sources_.push_back(source);
  sizes_.push_back(bytes);
}

void CudaCopyBatch::Send(Stream& stream) {
  CUstream_st* handle = AsCuda(stream).handle();
#if CUDART_VERSION >= 13000
  constexpr size_t kMost = 512;  // copies per call
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;  // the index of the first copy with these attributes
  for (size_t i = 0; i < sizes_.size(); i += kMost) {
    LC_CUDA(cudaMemcpyBatchAsync(&targets_[i], &sources_[i], &sizes_[i],
                                 std::min(kMost, sizes_.size() - i), &attributes, &first, 1,
                                 handle));
  }
#else
  for (size_t i = 0; i < sizes_.size(); ++i) {
    LC_CUDA(cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyDefault, handle));
  }
#endif
  targets_.clear();
  sources_.clear();
  sizes_.clear();
}

}  // namespace litecache
