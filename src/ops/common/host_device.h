// LC_HOST_DEVICE marks a header's function that kernels call, too; outside nvcc it is an inline
// function, so that the host and tests without a GPU run the same code.
#pragma once

#ifdef __CUDACC__
#define LC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LC_HOST_DEVICE inline
#endif
