// Whether a selection's blocks work as thread block clusters, and attention copies runs of bytes.
#pragma once

namespace litecache::ops::cuda {

// On sm_90 and later. The environment's LITECACHE_CLUSTERS=0 says no: kernels then run as on older
// GPUs, a block where there was a cluster, copies of 16 bytes where there was one of a tile. To
// test that, and for tools that make every access to another block's shared memory too slow
// (racecheck).
bool UseClusters();

}  // namespace litecache::ops::cuda
