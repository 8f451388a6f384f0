// Launches the kernel for 9 and more rows: one .cu file instantiates a few layouts, because each
// takes a while to compile.
#pragma once

#include "ops/linear/quantized/gemm.cuh"

namespace litecache::ops::cuda::quantized {

template <int kLayout, int kColumnTiles>
void LaunchGemmRows(CudaStream& stream, const Arguments& a, int32_t tiles) {
  using Shape = GemmShape<kLayout, kColumnTiles>;
  const size_t most = AllowSharedMemory(&QuantizedGemmKernel<kLayout, kColumnTiles>);
  LC_CHECK(most >= Shape::kUsedBytes);
  // No more blocks fit on an SM.
  static_assert((Shape::kBlocks + 1) * Shape::kUsedBytes > kWholeBytes);
  const GemmPlan plan{.tiles = tiles, .blocks = (tiles + kTilesOfBlock - 1) / kTilesOfBlock};
  const GemmClusters clusters = ClustersFor(stream, plan.blocks, a.chunks, Shape::kBlocks);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(clusters.size);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(clusters.count * clusters.size);
  config.blockDim = kGemmThreads;
  config.dynamicSmemBytes = Shape::kUsedBytes;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = MayOverlap(stream) ? 2 : 1;
  LC_CUDA(cudaLaunchKernelEx(&config, QuantizedGemmKernel<kLayout, kColumnTiles>, a, plan));
  NoteOverlapping(stream);
}

template <int kLayout>
void LaunchGemmLayout(CudaStream& stream, const Arguments& a, int32_t tiles) {
  if (a.rows <= 16) return LaunchGemmRows<kLayout, 2>(stream, a, tiles);
  if (a.rows <= 32) return LaunchGemmRows<kLayout, 4>(stream, a, tiles);
  if (a.rows <= 48) return LaunchGemmRows<kLayout, 6>(stream, a, tiles);
  LaunchGemmRows<kLayout, 8>(stream, a, tiles);
}

}  // namespace litecache::ops::cuda::quantized
