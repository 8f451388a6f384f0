#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/blocks/block_replay_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kReplayThreads = 128;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct ReplayProblem {
  RecordedBlocks recorded;
  int64_t layer, past, first_turn;  // first_turn: RecordedHead() of query head 0
  int32_t rows;
  DeviceKeptBlocks kept;
};

// A block writes what a block of queries of a head keeps.
__global__ void __launch_bounds__(kReplayThreads)
    ReplayBlocksKernel(const __grid_constant__ ReplayProblem p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto query_block = static_cast<int32_t>(blockIdx.x);
  const int64_t head = blockIdx.y;
  const int32_t first = query_block * p.kept.query_rows;
  const int32_t end = min(first + p.kept.query_rows, p.rows);
  const auto seen = static_cast<int32_t>((p.past + end - 1) / KeptBlocks::kRows + 1);
  const MappedBlocks mapped =
      MapBlocks(p.recorded, p.layer, (p.first_turn + head) % p.recorded.q_heads, p.past + first);
  const int64_t pair = head * p.kept.query_blocks + query_block;
  uint32_t* bits = p.kept.bits + pair * p.kept.words;
  for (int32_t w = warp; w < p.kept.words; w += kReplayThreads / 32) {
    const int32_t block = w * 32 + lane;
    const unsigned word = __ballot_sync(kWholeWarp, block < seen && mapped.Kept(block));
    if (lane == 0) bits[w] = word;
  }
  __syncthreads();
  if (warp != 0) return;
  int32_t count = 0;
  uint16_t* list = p.kept.lists + pair * p.kept.list_size;
  for (int32_t w = 0; w < p.kept.words; ++w) {
    const unsigned word = bits[w];
    if ((word >> lane & 1) != 0) {
      list[count + __popc(word & ((1u << lane) - 1))] = static_cast<uint16_t>(w * 32 + lane);
    }
    count += __popc(word);
  }
  if (lane == 0) p.kept.counts[pair] = count;
}

}  // namespace

void ReplayBlocks(Stream& stream, const ChosenChunk& chunk, const RecordedBlocks& recorded,
                  int64_t layer, const DeviceKeptBlocks& chosen) {
  const int32_t blocks = chosen.query_blocks - (chunk.whole_end ? 1 : 0);
  if (blocks == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunk.q_heads));
  ReplayBlocksKernel<<<grid, kReplayThreads, 0, AsCuda(stream).handle()>>>(
      {.recorded = recorded,
       .layer = layer,
       .past = chunk.past,
       .first_turn = RecordedHead(chunk.layer, 0, chunk.q_heads, recorded.q_heads),
       .rows = static_cast<int32_t>(chunk.rows),
       .kept = chosen});
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
