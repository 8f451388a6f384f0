// The machine's best measured rates: the limits that speeds are compared with.
#pragma once

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace litecache::bench {

struct MachineRates {
  double bytes_per_second = 0;       // reading memory, all threads
  double flops_per_second = 0;       // products of the given dtype, all threads
  double link_bytes_per_second = 0;  // host to device; 0: they share one memory
};

// Reads a buffer much larger than the caches with all threads; best of several passes (about 0.3
// s).
double MeasureBandwidth(ThreadPool& pool);

// Multiply-adds in registers with the widest instructions for `dtype`, all threads (about 0.1 s).
// bf16 falls back to f32 arithmetic if the processor has no bf16 products.
double MeasureArithmetic(ThreadPool& pool, DType dtype);

// The rate of a large matrix product with ops::Linear, which may use matrix units that
// MeasureArithmetic does not.
double MeasureMatrixProduct(Device& device, Stream& stream, DType dtype);

// A GPU's rates: a large copy within its memory (read and written bytes), a large product, and a
// large copy from pinned host memory.
MachineRates MeasureGpu(Device& device, Stream& stream, DType dtype);

// Bandwidth, and the better of the two arithmetic rates.
MachineRates MeasureMachine(Device& device, Stream& stream, ThreadPool& pool, DType dtype);

}  // namespace litecache::bench
