#include <cstdlib>
#include <string_view>

#include "ops/common/overlap.cuh"
#include "ops/common/thread_block_clusters_cuda.h"

namespace litecache::ops::cuda {

bool UseClusters() {
  static const bool use = [] {
    const char* value = std::getenv("LITECACHE_CLUSTERS");
    if (value != nullptr && std::string_view(value) == "0") return false;
    int device = 0, has = 0;
    LC_CUDA(cudaGetDevice(&device));
    LC_CUDA(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device));
    return has != 0 && KernelsKnowHopper();
  }();
  return use;
}

}  // namespace litecache::ops::cuda
