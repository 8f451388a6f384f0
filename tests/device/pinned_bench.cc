// Measures the time to make pinned host memory: slab by slab as a store does, compared with
// cudaHostAlloc of the same size.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "device/cuda/check.h"
#include "ops/bench_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr size_t kSlab = size_t{256} << 20;  // kv/litecache/tiers.h

template <class Make>
void Print(const std::string& name, size_t slabs, const Make& make) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < slabs; ++i) make();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double gib = static_cast<double>(slabs * kSlab) / (1u << 30);
  fmt::print("{:<50} {:6.2f} s for {:.0f} GiB, {:5.1f} GiB/s\n", name, taken.count(), gib,
             gib / taken.count());
}

void BenchPinned(Bench& bench) {
  const PinnedHost any(bench.gpu());
  const size_t most = std::min<size_t>(any.Info().free_memory / 2, size_t{64} << 30) / kSlab;
  const std::string theirs = "pinned memory, cudaHostAlloc of 256 MiB";
  for (const ReadBy reader : {ReadBy::kCopies, ReadBy::kKernels}) {
    PinnedHost host(bench.gpu(), reader);
    const std::string ours = fmt::format("pinned memory for {}, slabs of 256 MiB",
                                         reader == ReadBy::kCopies ? "copies" : "kernels");
    if (!bench.Wants(ours)) continue;
    std::vector<Buffer> slabs;
    Print(ours, most, [&] { slabs.push_back(host.Allocate(kSlab)); });
  }
  if (bench.Wants(theirs)) {
    std::vector<Buffer> slabs;
    Print(theirs, std::max<size_t>(most / 8, 1), [&] {
      void* data = nullptr;
      LC_CUDA(cudaHostAlloc(&data, kSlab, cudaHostAllocMapped));
      slabs.emplace_back(data, kSlab, [](void* memory, size_t) { cudaFreeHost(memory); });
    });
  }
}

const BenchTopic kPinned("pinned", BenchPinned);

}  // namespace
}  // namespace litecache::ops::cuda
