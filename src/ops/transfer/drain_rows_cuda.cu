// Puts rows that the host has gathered into their slots.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/transfer/move_rows.cuh"
#include "ops/transfer/system_flags.cuh"
#include "ops/transfer/transfer_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kPollNanoseconds = 64;

__device__ __forceinline__ std::byte* TargetOf(const TransferList& list, int64_t row) {
  return reinterpret_cast<std::byte*>(list.targets[row]);
}

// Places `rows` adjacent rows, by the warps of a block.
__device__ __forceinline__ void PlaceRows(const TransferList& list, int64_t first, int32_t rows,
                                          const std::byte* staged, const RowFormat& from,
                                          const RowFormat& to, int32_t warp, int32_t warps) {
  const size_t row_bytes = RowBytes(from);
  const int32_t at_once = RowsAtOnce(from);
  for (int32_t row = warp * at_once; row < rows; row += warps * at_once) {
    MoveSome(
        min(at_once, rows - row), from, to,
        [&](int32_t i) { return staged + static_cast<size_t>(row + i) * row_bytes; },
        [&](int32_t i) { return from.scales_apart ? list.scales[first + row + i] : float2{}; },
        [&](int32_t i) { return TargetOf(list, first + row + i); });
  }
}

// Returns false after the deadline of this wait or another block's.
__device__ bool Await(const TransferList& list, const uint64_t* flag, uint64_t chunk, int32_t layer,
                      uint64_t deadline_ns) {
  const uint64_t begin = Nanoseconds();
  const volatile uint32_t* fault = &list.state->fault;
  while (true) {
    const uint64_t seen = PollFlag(flag);
    if (seen == chunk + 1) break;
    if (*fault != 0) return false;
    if (Nanoseconds() - begin > deadline_ns) {
      if (atomicCAS(&list.state->fault, 0u, 1u) == 0) {
        TransferFault& report = list.mailbox->fault;
        report.layer = static_cast<uint64_t>(layer);
        report.chunk = chunk;
        report.seen = seen;
        RaiseFlag(&report.set, 1);
      }
      return false;
    }
    __nanosleep(kPollNanoseconds);
  }
  __threadfence_system();  // before the chunk is read
  return true;
}

// Blocks take chunks dynamically, so that a block that has not started yet delays no chunk.
__global__ void __launch_bounds__(kThreads, 1)
    DrainRowsKernel(const __grid_constant__ TransferList list,
                    const __grid_constant__ TransferRing ring,
                    const __grid_constant__ RowFormat from, const __grid_constant__ RowFormat to,
                    int32_t layer, uint64_t deadline_ns) {
  __shared__ unsigned long long taken;
  __shared__ bool has_come;
  TransferState& state = *list.state;
  const auto rows = static_cast<int64_t>(state.rows);
  const uint64_t chunks = (static_cast<uint64_t>(rows) + list.chunk_rows - 1) / list.chunk_rows;
  while (true) {
    if (threadIdx.x == 0) {
      taken = atomicAdd(&state.taken, 1ull);
      const uint64_t chunk = state.first_chunk + taken;
      has_come = taken < chunks && Await(list, ring.ready + chunk % ring.count * kFlagStride, chunk,
                                         layer, deadline_ns);
    }
    __syncthreads();
    if (!has_come) return;
    const uint64_t chunk = state.first_chunk + taken;
    const int64_t first = static_cast<int64_t>(taken) * list.chunk_rows;
    PlaceRows(list, first, static_cast<int32_t>(min(int64_t{list.chunk_rows}, rows - first)),
              ring.chunks + chunk % ring.count * ring.chunk_bytes, from, to, threadIdx.x / 32,
              kWarps);
    __syncthreads();
    if (threadIdx.x == 0) RaiseFlag(ring.consumed + chunk % ring.count * kFlagStride, chunk + 1);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    ScatterRowsKernel(const __grid_constant__ TransferList list, int64_t first, int32_t count,
                      const std::byte* staged, const __grid_constant__ RowFormat from,
                      const __grid_constant__ RowFormat to) {
  PlaceRows(list, first, count, staged, from, to,
            static_cast<int32_t>(blockIdx.x) * kWarps + threadIdx.x / 32, gridDim.x * kWarps);
}

}  // namespace

void DrainRows(Stream& stream, const TransferList& list, const TransferRing& ring,
               const RowFormat& from, const RowFormat& to, int32_t layer, uint64_t deadline_ns,
               int32_t blocks) {
  CheckMove(from, to);
  LC_CHECK(blocks >= 1 && ring.count >= 1, "{} blocks, {} chunks", blocks, ring.count);
  LC_CHECK(static_cast<size_t>(list.chunk_rows) * from.row_bytes() <= ring.chunk_bytes,
           "chunks of {} rows do not fit", list.chunk_rows);
  DrainRowsKernel<<<blocks, kThreads, 0, AsCuda(stream).handle()>>>(list, ring, from, to, layer,
                                                                    deadline_ns);
  LC_CUDA_LAUNCHED();
}

void ScatterRows(Stream& stream, const TransferList& list, int64_t first, int64_t count,
                 const std::byte* staged, const RowFormat& from, const RowFormat& to) {
  CheckMove(from, to);
  LC_CHECK(first >= 0 && count >= 0 && first + count <= list.capacity && count < (1 << 30));
  if (count == 0) return;
  constexpr int64_t kBlockRows = 128;
  const auto blocks =
      std::min<int64_t>((count + kBlockRows - 1) / kBlockRows, AsCuda(stream).sm_count());
  ScatterRowsKernel<<<static_cast<unsigned>(blocks), kThreads, 0, AsCuda(stream).handle()>>>(
      list, first, static_cast<int32_t>(count), staged, from, to);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
