// FlashInfer's kernel after FlashAttention-3 (wgmma; one warp copies, two or three warpgroups
// multiply), from its headers, over paged rows. LiteCache supplies what its templates require:
// which block attends what (StepTiles), and how rows are loaded from their pages (PagedRows).
// Nothing is gathered or allocated:
//
// - Pages may be anywhere, so one tensor map covers all addresses, and a tile's address is split
//   over its coordinates.
// - bf16 queries are stored where their outputs will be: a block reads its queries before it
//   writes.
#pragma once

#include <cuda.h>

#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <initializer_list>
#include <numeric>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/common/online_softmax.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/rows/paged_rows.cuh"

namespace litecache::ops::cuda {

using Value = cutlass::bfloat16_t;

constexpr int kColumns = 64;  // columns of a box: rows of 128 bytes, as the swizzle requires
// Base address of the map that covers all memory; it must not be zero.
constexpr uint64_t kBase = 4096;

struct Scores {
  float scale = 0;  // in units of log2 e
  float cap = 0;    // in the same units
};

// Scores with a cap become hyperbolic tangents, whose scale is the cap. Kernels without one do not
// have the arithmetic at all: registers are scarce.
template <bool kCapped>
struct HopperSoftmax {
  float scale;
  SoftCapOf tangent;

  template <typename Params, typename Tile>
  __device__ HopperSoftmax(const Params& params, const Tile&)
      : scale(params.additional_params.scale) {
    if constexpr (kCapped) {
      tangent.cap = 1;
      tangent.exponent = SoftCapOf(params.additional_params.cap).exponent * scale;
      scale = params.additional_params.cap;
    }
  }
  template <int kRows>
  __device__ auto GetAttentionUpdater() {
    return flashinfer::OnlineSoftmax<kRows, true>(scale);
  }
  template <typename Params, typename T>
  __device__ T LogitsTransform(const Params&, T score, uint32_t, uint32_t, uint32_t, uint32_t,
                               uint32_t) {
    if constexpr (kCapped) return tangent(score);
    return score;
  }
};

// Tile shapes are FlashInfer's choice for causal attention.
template <int kHeadDim, bool kCapped>
struct HopperShape {
  static constexpr int kQueries = kHeadDim == 64 ? 192 : 128;
  static constexpr int kRows = kHeadDim == 256 ? 64 : 128;
  using Traits =
      flashinfer::AttentionKernelTraits<true, kHeadDim, kHeadDim, kQueries, kRows, 2, Value, Value,
                                        Value, int32_t, HopperSoftmax<kCapped>>;
};

// A block attends one tile of one query head: heads are adjacent in the grid, tiles with the most
// rows first.
template <int kQueries>
struct StepTiles {
  struct Params {
    StepView step;
    const int32_t* list_of_head = nullptr;
    int32_t group = 0;
    DeviceKeptBlocks kept;
  };

  struct WorkTileInfo {
    int tile = 0, q_head = 0, kv_head = 0, first_row = 0, rows = 0, context = 0;
    bool valid = false;

    __device__ bool is_valid(const Params&) const { return valid; }
    __device__ auto get_block_coord(const Params&) const {
      return cute::tuple{tile,
                         q_head,
                         kv_head,
                         first_row,
                         /*first row of K and V*/ 0,
                         rows,
                         context,
                         static_cast<int>(blockIdx.z)};
    }
  };

  __device__ WorkTileInfo get_initial_work(const Params& p) const {
    WorkTileInfo work;
    if (static_cast<int32_t>(blockIdx.z) >= *p.step.count) return work;
    const StepSequence& sequence = p.step.sequences[blockIdx.z];
    work.tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
    work.q_head = static_cast<int>(blockIdx.x);
    work.kv_head = work.q_head / p.group;
    work.first_row = sequence.first_row;
    work.rows = sequence.rows;
    work.context = sequence.past + sequence.rows;
    work.valid = work.tile * kQueries < work.rows && p.list_of_head[work.kv_head] >= 0;
    if (work.valid && p.kept.counts != nullptr) {
      // Kept blocks are attended as if they were adjacent: the context is shorter by the others,
      // all of which come before the rows that the causal mask cuts.
      const int seen = min((work.tile + 1) * kQueries, work.rows) + sequence.past;
      const int blocks = (seen + KeptBlocks::kRows - 1) / KeptBlocks::kRows;
      const int kept = p.kept.counts[work.q_head * p.kept.query_blocks + work.tile];
      work.context -= (blocks - kept) * KeptBlocks::kRows;
    }
    return work;
  }
  template <bool kProducer = false>
  __device__ WorkTileInfo get_next_work(const Params&, const WorkTileInfo&) const {
    return {};
  }
  __device__ void init_consumer() const {}
  __device__ void prefetch_next_work(const Params&, const WorkTileInfo&) const {}
  __device__ void broadcast_next_work(const WorkTileInfo&) const {}
};

// One warp loads tiles of queries, K and V into shared memory: each lane issues the load of a box
// of rows within one page.
template <int kHeadDim, bool kCapped>
struct PagedRows {
  using Traits = typename HopperShape<kHeadDim, kCapped>::Traits;
  using MainloopPipeline = typename Traits::MainloopPipeline;
  using PipelineState = typename MainloopPipeline::PipelineState;
  static constexpr bool USE_TMA_LOAD_KV = true;
  static constexpr int kQueries = Traits::CTA_Q, kRows = Traits::CTA_KV;
  static constexpr uint32_t kQueryBytes = kQueries * kHeadDim * sizeof(Value);
  static constexpr uint32_t TmaTransactionBytesK = kRows * kHeadDim * sizeof(Value);
  static constexpr uint32_t TmaTransactionBytesV = TmaTransactionBytesK;
  using WarpScheduler = flashinfer::WarpScheduler<Traits, kHeadDim <= 128>;

  struct Params {
    CUtensorMap queries, rows;
    const StepSequence* sequences = nullptr;
    TableAccess access;
    int32_t boxes = 0, box_rows = 0;  // of a tile
    DeviceKeptBlocks kept;
    int window_left = -1;
    Scores additional_params;
  };

  // The coordinates of a lane's box in the map `rows`.
  struct Box {
    int32_t low, high;
  };

  static __device__ void prefetch_tma_descriptors(const Params& p) {
    cute::prefetch_tma_descriptor(&p.queries);
    cute::prefetch_tma_descriptor(&p.rows);
  }

  static __device__ int get_num_kv_tiles(const Params&, int tile, int rows, int context) {
    const int seen = min((tile + 1) * kQueries, rows) + context - rows;
    return (seen + kRows - 1) / kRows;
  }

  // A box beyond the context repeats the tile's first box: any readable rows will do, because they
  // are masked (K) or replaced (V). kept: the blocks of rows that the context consists of; null:
  // all.
  static __device__ Box BoxOf(const Params& p, const RowList& list, const uint16_t* kept, int tile,
                              int lane, int context) {
    const int begin = tile * kRows + lane * p.box_rows;
    int at = begin < context ? begin : tile * kRows;
    if (kept != nullptr) {
      if (lane >= p.boxes) at = tile * kRows;  // there may be no such block in the list
      at = kept[at / KeptBlocks::kRows] * KeptBlocks::kRows + at % KeptBlocks::kRows;
    }
    const std::byte* row = list.Row(at);
    const uint64_t units = (reinterpret_cast<uint64_t>(row) - kBase) >> 4;
    return {static_cast<int32_t>(units & 0x7fffffff), static_cast<int32_t>(units >> 31)};
  }

  // column: the first column of K or of V.
  static __device__ void Copy(const Params& p, const Box& box, int lane, int column, void* barrier,
                              Value* target) {
    __syncwarp();  // the barrier must expect the bytes before they arrive
    if (lane >= p.boxes) return;
#pragma unroll
    for (int c = 0; c < kHeadDim; c += kColumns) {
      cute::SM90_TMA_LOAD_4D::copy(&p.rows, static_cast<uint64_t*>(barrier),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   target + c * kRows + lane * p.box_rows * kColumns, column + c, 0,
                                   box.low, box.high);
    }
  }

  // Zeroes V beyond the context in the tile that ends with it and has `there` valid rows, before
  // the tile is passed on: anything multiplied by zero must be a finite number. The kernel's
  // barrier for outputs is free here, because blocks with one tile do not use it.
  template <typename SharedStorage>
  static __device__ void LoadLastV(const Params& p, const Box& box, int lane, int there,
                                   const PipelineState& write, SharedStorage& shared) {
    using cutlass::arch::ClusterTransactionBarrier;
    auto* arrived = reinterpret_cast<uint64_t*>(&shared.barrier_O);
    Value* target = shared.smem_v.data() + write.index() * kRows * kHeadDim;
    shared.pipeline_v.empty_barrier_[write.index()].wait(write.phase());
    if (lane == 0) ClusterTransactionBarrier::arrive_and_expect_tx(arrived, TmaTransactionBytesV);
    Copy(p, box, lane, kHeadDim, arrived, target);
    ClusterTransactionBarrier::wait(arrived, 0);
    constexpr int kChunks = kColumns / 8;
#pragma unroll 1
    for (int c = 0; c < kHeadDim; c += kColumns) {
#pragma unroll 1
      for (int i = there * kChunks + lane; i < kRows * kChunks; i += 32) {
        reinterpret_cast<uint4*>(target + c * kRows)[i] = uint4{0, 0, 0, 0};
      }
    }
    cutlass::arch::fence_view_async_shared();  // matrix products read through another proxy
    __syncwarp();
    if (lane == 0) shared.pipeline_v.full_barrier_[write.index()].arrive();
  }

  template <bool kSlidingWindow, typename Tile, typename Scheduler, typename SharedStorage>
  __device__ void load(const Params& p, MainloopPipeline pipeline_k, MainloopPipeline pipeline_v,
                       PipelineState& write_k, PipelineState& write_v, SharedStorage& shared,
                       Scheduler&, const typename Scheduler::Params&,
                       typename Scheduler::WorkTileInfo&, const Tile& tile, int) {
    const auto [query_tile, q_head, kv_head, first_row, unused, rows, context, sequence] = tile;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RowList list = p.access.List(p.sequences[sequence], p.access.table.list_of_head[kv_head]);
    const auto load_k = [&](const Box& box) {
      pipeline_k.producer_acquire(write_k);
      Copy(p, box, lane, 0, pipeline_k.producer_get_barrier(write_k),
           shared.smem_k.data() + write_k.index() * kRows * kHeadDim);
      ++write_k;
    };
    const auto load_v = [&](int t, const Box& box) {
      if ((t + 1) * kRows > context) {
        LoadLastV(p, box, lane, context - t * kRows, write_v, shared);
      } else {
        pipeline_v.producer_acquire(write_v);
        Copy(p, box, lane, kHeadDim, pipeline_v.producer_get_barrier(write_v),
             shared.smem_v.data() + write_v.index() * kRows * kHeadDim);
      }
      ++write_v;
    };
    const uint16_t* kept = nullptr;
    if (p.kept.lists != nullptr) {
      kept = p.kept.lists + int64_t{q_head * p.kept.query_blocks + query_tile} * p.kept.list_size;
    }
    int t = get_num_kv_tiles(p, query_tile, rows, context) - 1;
    Box box = BoxOf(p, list, kept, t, lane, context);
    load_k(box);
    // Waits until the warps that multiply have started.
    cutlass::arch::NamedBarrier::sync(Traits::NUM_MMA_THREADS + Traits::NUM_PRODUCER_THREADS,
                                      static_cast<int>(flashinfer::NamedBarriers::kQueryEmpty));
    if (lane == 0) {
      shared.barrier_Q.arrive_and_expect_tx(kQueryBytes);
#pragma unroll
      for (int c = 0; c < kHeadDim; c += kColumns) {
        cute::SM90_TMA_LOAD_2D::copy(&p.queries, reinterpret_cast<uint64_t*>(&shared.barrier_Q),
                                     static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                     shared.smem_q.data() + c * kQueries, q_head * kHeadDim + c,
                                     first_row + query_tile * kQueries);
      }
    }
    for (; t > 0; --t) {
      const Box next = BoxOf(p, list, kept, t - 1, lane, context);
      load_k(next);
      load_v(t, box);
      box = next;
    }
    load_v(0, box);
  }

  __device__ void load_tail(MainloopPipeline pipeline_k, MainloopPipeline pipeline_v,
                            PipelineState& write_k, PipelineState& write_v) {
    if (threadIdx.x != 0) return;
    pipeline_k.producer_tail(write_k);
    pipeline_v.producer_tail(write_v);
  }
};

// Writes outputs from registers to memory. The library's own path goes through shared memory and a
// barrier at which all threads first arrive and then wait: half of them make as many arrivals as it
// counts, and may read the others' outputs before they are written (seen under compute-sanitizer,
// which delays warps unevenly). Sinks enter here, because registers are scarce in the loop before.
template <typename Traits>
struct DirectOutputs : flashinfer::CollectiveEpilogue<Traits> {
  struct Params : flashinfer::CollectiveEpilogue<Traits>::Params {
    const float* sinks;  // [q_heads], or null
  };

  // log_sums: of the probabilities of the thread's queries, base 2, without sinks.
  template <typename Sums, typename LogSums, typename SharedStorage, typename Product,
            typename Tile>
  __device__ void store(const Params& p, Sums& sums, const LogSums& log_sums, SharedStorage&,
                        Product product, int thread, const Tile& tile) {
    using cute::get;
    const auto [query_tile, q_head, kv_head, first_row, unused, rows, context, sequence] = tile;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[q_head] * kLog2E;
      const auto by_query =
          cute::make_tensor(sums.data(), flashinfer::convert_layout_acc_rowcol(sums.layout()));
#pragma unroll
      for (int i = 0; i < cute::size<0>(by_query); ++i) {
        const float share = 1 / (1 + Exp2(sink - log_sums(i)));  // that the sink leaves
#pragma unroll
        for (int c = 0; c < cute::size<1>(by_query); ++c) by_query(i, c) *= share;
      }
    }
    const int first = query_tile * Traits::CTA_Q;
    const int64_t stride = cute::stride<0>(p.layout_O);
    Value* const out = p.O_ptr + (first_row + first) * stride + q_head * Traits::HEAD_DIM_VO;
    const auto shape =
        cute::make_shape(cute::Int<Traits::CTA_Q>{}, cute::Int<Traits::HEAD_DIM_VO>{});
    const auto places =
        product.get_thread_slice(thread).partition_C(cute::make_identity_tensor(shape));
    // The innermost two results of a product are adjacent in a row.
#pragma unroll
    for (int i = 0; i < cute::size(sums); i += 2) {
      const auto place = places(i);
      if (first + get<0>(place) >= rows) continue;
      *reinterpret_cast<uint32_t*>(out + get<0>(place) * stride + get<1>(place)) =
          PackBf16(sums(i), sums(i + 1));
    }
  }
};

inline CUtensorMap MakeMap(void* base, std::initializer_list<uint64_t> sizes,
                           std::initializer_list<uint64_t> strides,
                           std::initializer_list<uint32_t> box) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    LC_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                             cudaEnableDefault, &result));
    LC_CHECK(result == cudaDriverEntryPointSuccess, "the driver knows no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const uint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<uint32_t>(sizes.size()), base,
             sizes.begin(), strides.begin(), box.begin(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  LC_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error {}", static_cast<int>(result));
  return map;
}

// The bf16 queries must be in operands.out.
template <int kHeadDim, bool kCapped = false>
void LaunchHopper(CudaStream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                  const AttentionOperands& operands) {
  using Shape = HopperShape<kHeadDim, kCapped>;
  using Traits = typename Shape::Traits;
  using Rows = PagedRows<kHeadDim, kCapped>;
  using Outputs = DirectOutputs<Traits>;
  using Tiles = StepTiles<Shape::kQueries>;
  const MatrixView& out = operands.out;
  typename Rows::Params rows;
  rows.box_rows = std::gcd(table.page_rows, Shape::kRows);
  rows.boxes = Shape::kRows / rows.box_rows;
  rows.access = TableAccess(table);
  rows.sequences = step.sequences;
  LC_CHECK(kCapped == (operands.cap != 0), "a cap of {}", operands.cap);
  rows.additional_params = {operands.scale, operands.cap};
  rows.kept = operands.kept;
  LC_CHECK(operands.kept.bits == nullptr || operands.kept.query_rows == Shape::kQueries);
  rows.queries =
      MakeMap(out.data, {static_cast<uint64_t>(out.cols), static_cast<uint64_t>(out.rows)},
              {static_cast<uint64_t>(out.stride) * sizeof(Value)},
              {kColumns, static_cast<uint32_t>(Shape::kQueries)});
  // Dimensions: columns of a row; rows of a box; 16-byte units of 32 GiB; 32 GiB units of all
  // memory.
  rows.rows = MakeMap(
      reinterpret_cast<void*>(kBase),
      {2 * kHeadDim, static_cast<uint64_t>(rows.box_rows), uint64_t{1} << 31, uint64_t{1} << 22},
      {static_cast<uint64_t>(rows.access.row_bytes), 16, uint64_t{1} << 35},
      {kColumns, static_cast<uint32_t>(rows.box_rows), 1, 1});
  const typename Outputs::Params outputs{
      {static_cast<Value*>(out.data),
       flashinfer::get_gmem_layout(static_cast<int>(out.rows), operands.q_heads, kHeadDim,
                                   out.stride, kHeadDim),
       nullptr, flashinfer::get_lse_gmem_layout(static_cast<int>(out.rows), operands.q_heads)},
      operands.sinks};
  const typename Tiles::Params tiles{
      step, table.list_of_head, operands.q_heads / static_cast<int32_t>(kv_heads), operands.kept};
  const auto kernel =
      flashinfer::PrefillWithKVCacheKernel<Rows, Outputs, Traits, false, true, Tiles>;
  const size_t most = AllowSharedMemory(kernel);
  constexpr size_t kBytes = sizeof(typename Traits::SharedStorage);
  LC_CHECK(kBytes <= most, "a GPU with too little shared memory");
  const dim3 grid(static_cast<unsigned>(operands.q_heads),
                  static_cast<unsigned>((step.max_rows + Shape::kQueries - 1) / Shape::kQueries),
                  static_cast<unsigned>(step.capacity));
  LC_CHECK(grid.y <= 65535 && grid.z <= 65535, "too many queries in one step");
  kernel<<<grid, Traits::NUM_THREADS, kBytes, stream.handle()>>>(rows, outputs, tiles);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
