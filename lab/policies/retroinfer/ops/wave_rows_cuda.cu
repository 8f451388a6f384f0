// Rows of a wave buffer: lists the rows that a step attends and those to be fetched, and admits
// rows to the cache.
#include <algorithm>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/retroinfer/ops/wave_pair.cuh"
#include "ops/common/overlap.cuh"
#include "ops/transfer/move_rows.cuh"
#include "ops/transfer/system_flags.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kListThreads = 1024;  // one warp per cluster, whose loads depend on each other
constexpr int kListWarps = kListThreads / 32;
constexpr int kListParts = 4;  // maximum blocks per pair
// Small blocks, which fit on an SM next to a block of a product.
constexpr int kAdmitThreads = 128;
constexpr int kAdmitWarps = kAdmitThreads / 32;
constexpr int kAdmitBlocks = 16;  // per pair

// The row of a list at `slot` of the pages that begin with `page`; slots count rows of whole
// blocks.
__device__ __forceinline__ int32_t BlockRow(const WaveShape& shape, const RowTable& rows,
                                            int32_t page, int32_t slot) {
  const int32_t pages = slot / shape.page_block_rows;
  return (page + pages) * rows.page_rows + slot - pages * shape.page_block_rows;
}

// Sums of three values over the threads before this one; totals: over all threads.
struct Sums {
  int32_t rows, fetched, blocks;
};
__device__ Sums ExclusiveSums(const Sums& mine, Sums* of_warps, Sums* totals) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Sums all, before;
  before.rows = WarpExclusiveSum(mine.rows, &all.rows);
  before.fetched = WarpExclusiveSum(mine.fetched, &all.fetched);
  before.blocks = WarpExclusiveSum(mine.blocks, &all.blocks);
  __syncthreads();
  if (lane == 0) of_warps[warp] = all;
  __syncthreads();
  *totals = {};
  for (int w = 0; w < kListWarps; ++w) {
    if (w == warp) {
      before.rows += totals->rows;
      before.fetched += totals->fetched;
      before.blocks += totals->blocks;
    }
    totals->rows += of_warps[w].rows;
    totals->fetched += of_warps[w].fetched;
    totals->blocks += of_warps[w].blocks;
  }
  return before;
}

// Blocks [pairs][parts]: each processes all of a pair's clusters, and lists the rows of its share.
__global__ void __launch_bounds__(kListThreads, 1)
    ListRowsKernel(const __grid_constant__ StepView step, const __grid_constant__ WaveShape shape,
                   const __grid_constant__ WaveLayer layer,
                   const __grid_constant__ TableAccess access) {
  __shared__ Sums of_warps[kListWarps];
  // The current clusters: targets and sources of their rows.
  struct Cluster {
    int32_t size, row, fetched, block, source;  // block: its first if cached, else in the buffer
    bool hit;
  };
  __shared__ Cluster clusters[kListThreads];
  const int32_t pair = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto part = static_cast<int32_t>(blockIdx.y), parts = static_cast<int32_t>(gridDim.y);
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  const bool first = part == 0 && threadIdx.x == 0;
  // Read before the wait: the step was complete before the previous kernel began.
  const bool exists = sequence < *step.count;
  const WaveSequence wave = exists ? layer.sequences[sequence] : WaveSequence{};
  const int32_t n = exists ? step.sequences[sequence].past + 1 : 0;
  const int32_t list = layer.rows.list_of_head[head];
  WaitForKernelBefore();
  if (pair == 0 && first && layer.mailbox != nullptr) {
    RaiseFlag(&layer.mailbox->chosen, *layer.first_number + layer.number + 1);
  }
  if (!exists) {
    if (first) {
      layer.leading[pair] = layer.listed_count[pair] = layer.fetched_count[pair] = 0;
    }
    return;
  }
  int32_t* listed = layer.listed + int64_t{pair} * shape.max_rows;
  int32_t* sources = layer.fetched_sources + int64_t{pair} * shape.max_rows;
  int32_t* targets = layer.fetched_targets + int64_t{pair} * shape.max_rows;
  // The part of the steady zone after the sink.
  const int32_t ring = max(0, n - wave.indexed_end);
  for (int32_t i = part * kListThreads + threadIdx.x; i < ring; i += parts * kListThreads) {
    listed[i] = shape.sink + (wave.indexed_end + i) % shape.ring;
  }
  const int32_t retrieved = wave.clusters > 0 ? layer.choices[pair].retrieved : 0;
  const int32_t* ids = layer.ids + int64_t{pair} * shape.max_chosen;
  const RowList index = access.List(step.sequences[sequence], layer.index.list_of_head[head]);
  const int64_t of_list = int64_t{list} * wave.cluster_stride;
  const int32_t* next_block = wave.next_block + int64_t{list} * wave.block_stride;
  Sums before{ring, 0, 0};
  for (int32_t base = 0; base < retrieved; base += kListThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    Cluster cluster = {};
    Sums mine = {};
    if (i < retrieved) {
      const int32_t id = ids[i];
      cluster.size = ClusterSize(index, id);
      cluster.block = wave.first_block[of_list + id];
      cluster.source = wave.begins[of_list + id];
      cluster.hit = cluster.block >= 0;
      mine.rows = cluster.size;
      if (!cluster.hit) {
        mine.fetched = cluster.size;
        mine.blocks = CeilBlocks(cluster.size, shape.block_tokens);
      }
    }
    Sums totals;
    const Sums at = ExclusiveSums(mine, of_warps, &totals);
    cluster.row = before.rows + at.rows;
    cluster.fetched = before.fetched + at.fetched;
    if (!cluster.hit) cluster.block = before.blocks + at.blocks;
    clusters[threadIdx.x] = cluster;
    __syncthreads();
    const int32_t some = min(kListThreads, retrieved - base);
    for (int32_t c = part * kListWarps + warp; c < some; c += parts * kListWarps) {
      const Cluster& of = clusters[c];
      for (int32_t r = lane; r < of.size; r += 32) {
        if (of.hit) {
          int32_t block = of.block;
          for (int32_t b = r / shape.block_tokens; b > 0; --b) block = next_block[block];
          listed[of.row + r] = BlockRow(shape, layer.rows, wave.cache_page,
                                        block * shape.block_tokens + r % shape.block_tokens);
        } else {
          const int32_t row =
              BlockRow(shape, layer.rows, wave.buffer_page, of.block * shape.block_tokens + r);
          listed[of.row + r] = row;
          sources[of.fetched + r] = of.source + r;
          targets[of.fetched + r] = row;
        }
      }
    }
    before.rows += totals.rows;
    before.fetched += totals.fetched;
    before.blocks += totals.blocks;
    __syncthreads();  // `clusters` may be overwritten
  }
  if (first) {
    layer.leading[pair] = min(n, shape.sink);
    layer.listed_count[pair] = before.rows;
    layer.fetched_count[pair] = before.fetched;
  }
}

// Links of a cluster that a warp holds at a time.
constexpr int32_t kLinks = 32;

// One block. Copies the answer to device memory: otherwise many warps would read it over the link
// piece by piece, each piece with a separate round trip.
__global__ void __launch_bounds__(kAdmitThreads, 8)
    ReceiveAnswerKernel(const __grid_constant__ WaveLayer layer, int32_t pairs,
                        uint64_t deadline_ns) {
  __shared__ int32_t answered;
  if (threadIdx.x == 0) {
    const uint64_t wanted = *layer.first_number + layer.number + 1, begin = Nanoseconds();
    answered = 1;
    while (PollFlag(&layer.mailbox->admitted) < wanted) {
      if (PollFlag(&layer.mailbox->fault) != 0 || Nanoseconds() - begin > deadline_ns) {
        RaiseFlag(&layer.mailbox->fault, wanted);
        answered = 0;
        break;
      }
      __nanosleep(100);
    }
    __threadfence_system();
    *layer.answered = answered;
  }
  __syncthreads();
  if (answered == 0) return;
  const WaveAdmissions &from = layer.admissions, &to = layer.received;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < pairs + 2; i += kAdmitThreads) {
    to.begins[i] = __ldcv(from.begins + i);
  }
  const int32_t items = __ldcv(from.begins + pairs), links = __ldcv(from.begins + pairs + 1);
  const auto copy = [thread](auto* target, const auto* source, int32_t count) {
    constexpr int kInFlight = 4;
    for (int32_t i = thread; i < count; i += kInFlight * kAdmitThreads) {
      std::remove_cvref_t<decltype(*source)> values[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (i + u * kAdmitThreads < count) values[u] = __ldcv(source + i + u * kAdmitThreads);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (i + u * kAdmitThreads < count) target[i + u * kAdmitThreads] = values[u];
      }
    }
  };
  copy(reinterpret_cast<int4*>(to.items), reinterpret_cast<const int4*>(from.items), items);
  copy(to.links_begin, from.links_begin, items);
  copy(to.links, from.links, links);
  __syncthreads();
}

// kAdmitBlocks blocks per pair, one warp per cluster.
__global__ void __launch_bounds__(kAdmitThreads, 8)
    AdmitKernel(const __grid_constant__ StepView step, const __grid_constant__ WaveShape shape,
                const __grid_constant__ WaveLayer layer,
                const __grid_constant__ TableAccess access) {
  __shared__ int32_t links[kAdmitWarps][kLinks];
  const int32_t pair = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count || *layer.answered == 0) return;
  const WaveSequence& wave = layer.sequences[sequence];
  const int32_t list = layer.rows.list_of_head[head];
  const RowList rows = access.List(step.sequences[sequence], list);
  int32_t* first_block = wave.first_block + int64_t{list} * wave.cluster_stride;
  int32_t* next_block = wave.next_block + int64_t{list} * wave.block_stride;
  const int32_t at_once = RowsAtOnce(layer.rows.format), block_tokens = shape.block_tokens;
  const WaveAdmissions& admissions = layer.received;
  const int32_t end = admissions.begins[pair + 1];
  for (int32_t a = admissions.begins[pair] + static_cast<int32_t>(blockIdx.x * kAdmitWarps + warp);
       a < end; a += kAdmitBlocks * kAdmitWarps) {
    const WaveAdmission item = admissions.items[a];
    if (lane == 0) first_block[item.cluster] = item.block;
    if (item.block == WaveAdmission::kDropped) continue;
    const int32_t first_link = admissions.links_begin[a];
    const int32_t blocks = CeilBlocks(item.rows, block_tokens);
    for (int32_t window = 0; window < blocks; window += kLinks) {
      const int32_t some = min(kLinks, blocks - window);
      __syncwarp();  // the previous window has been read
      const int32_t link = lane < some ? admissions.links[first_link + window + lane] : 0;
      links[warp][lane] = link;
      const int32_t behind =  // the first of the next window, or none
          window + kLinks < blocks ? admissions.links[first_link + window + kLinks] : -1;
      __syncwarp();
      if (lane < some) next_block[link] = lane + 1 < some ? links[warp][lane + 1] : behind;
      const int32_t begin = window * block_tokens;
      const int32_t stop = min(item.rows, begin + some * block_tokens);
      for (int32_t r = begin; r < stop; r += at_once) {
        MoveSome(
            min(at_once, stop - r), layer.rows.format, layer.rows.format,
            [&](int32_t i) {
              return rows.Row(BlockRow(shape, layer.rows, wave.buffer_page,
                                       item.source * block_tokens + r + i));
            },
            [&](int32_t i) {
              const int32_t block = links[warp][(r + i) / block_tokens - window];
              return rows.Row(BlockRow(shape, layer.rows, wave.cache_page,
                                       block * block_tokens + (r + i) % block_tokens));
            });
      }
    }
  }
}

}  // namespace

void ListWaveRows(Stream& stream, const StepView& step, const WaveShape& shape,
                  const WaveLayer& layer) {
  const int pairs = step.capacity * shape.kv_heads;
  if (pairs == 0) return;
  CudaStream& cuda = AsCuda(stream);
  const int parts = std::clamp(cuda.sm_count() / pairs, 1, kListParts);
  LaunchOverlapping(cuda, ListRowsKernel,
                    dim3(static_cast<unsigned>(pairs), static_cast<unsigned>(parts)),
                    dim3(kListThreads), 0, step, shape, layer, TableAccess(layer.index));
}

void AdmitClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, uint64_t deadline_ns) {
  const int pairs = step.capacity * shape.kv_heads;
  if (pairs == 0) return;
  CUstream_st* handle = AsCuda(stream).handle();
  ReceiveAnswerKernel<<<1, kAdmitThreads, 0, handle>>>(layer, pairs, deadline_ns);
  LC_CUDA_LAUNCHED();
  const dim3 grid(kAdmitBlocks, static_cast<unsigned>(pairs));
  AdmitKernel<<<grid, kAdmitThreads, 0, handle>>>(step, shape, layer, TableAccess(layer.rows));
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
