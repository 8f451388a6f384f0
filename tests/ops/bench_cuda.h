// Measurements of CUDA operations against the limits of the hardware.
#pragma once

#include <functional>
#include <string>

#include "device/cuda/cuda_device.h"

namespace litecache::ops::cuda {

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)) {}

  // Whether `name` was selected; otherwise set up nothing for it.
  bool Wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  // The same for names with this prefix.
  bool WantsSome(const std::string& beginning) const {
    return Wants(beginning) || filter_.starts_with(beginning);
  }

  // Prints a row of the table: the median time of `run(i)`, i in [0, count), each of which reads
  // and writes `bytes` and performs `flops / 2` multiplications. The `count` runs are captured into
  // one graph; give them separate memory, in total several times the size of the L2 cache. If
  // run(0) has diverted its stream (CudaStream::Divert), it is restored after the last one.
  void Run(const std::string& name, double bytes, double flops, int count,
           const std::function<void(Stream&, int)>& run);

  CudaDevice& gpu() { return gpu_; }
  // Device memory of random bf16 numbers, or of zeros.
  Buffer Random(size_t bytes);
  Buffer Zeros(size_t bytes);
  template <typename T>
  Buffer Upload(const T& values) {
    Buffer buffer = gpu_.Allocate(values.size() * sizeof(values[0]));
    gpu_.Copy(buffer.data(), values.data(), values.size() * sizeof(values[0]));
    return buffer;
  }

 private:
  std::string filter_;
  CudaDevice gpu_;
};

// A topic's benchmarks: their file declares one of these after its function, and the program it is
// linked into runs it, in the order of the names.
struct BenchTopic {
  BenchTopic(const char* name, void (*run)(Bench&));
};

}  // namespace litecache::ops::cuda
