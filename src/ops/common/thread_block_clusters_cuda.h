// Whether kernels use thread block clusters and bulk copies.
#pragma once

namespace litecache::ops::cuda {

// True on sm_90 and later, unless LITECACHE_CLUSTERS=0 is set in the environment: kernels then run
// as on earlier GPUs, with a block instead of a cluster and copies of 16 bytes instead of one per
// tile. That is for tests, and for tools that slow down every access to another block's shared
// memory too much (racecheck).
bool UseClusters();

}  // namespace litecache::ops::cuda
