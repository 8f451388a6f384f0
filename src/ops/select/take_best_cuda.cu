// The last part of a chain (top_k_chain.cuh) on GPUs with clusters: finds the k-th largest key and
// writes the positions. One cluster of blocks per pair; each block reads its range of the keys
// once: keys above the bin of the k-th largest are marked in a bitmap, keys in the bin are listed,
// both in shared memory. Blocks are small, so that they find room beside products.
#include <map>
#include <mutex>

#include "ops/select/take_best_block.cuh"
#include "ops/select/take_best_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kBlocksAnSm = 3;
constexpr int64_t kLeastListed = 512, kMostListed = 2048;

__global__ void __launch_bounds__(kTakeThreads, kBlocksAnSm)
    TakeKernel(const __grid_constant__ Chain chain, int32_t* const selected_of_all,
               const int32_t max_rows, const int32_t bitmap_words, const int32_t list_room) {
  extern __shared__ uint4 bitmap[];
  __shared__ TakeShared shared;
  const ClusterTeam team;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, warp = thread / 32;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  for (int32_t i = thread; i < kFineBins; i += kTakeThreads) {
    shared.fine[0][i] = 0;
    shared.fine[1][i] = 0;
  }
  if (thread == 0) shared.listed = 0;
  WaitForKernelBefore();
  LetNextKernelStart();
  const int4 state = __ldcg(reinterpret_cast<const int4*>(chain.PairOf(pair)));
  const int32_t items = state.x;
  if (items == 0) return;  // the same for the whole team
  const int32_t a_block = (items + team.size - 1) / team.size;
  const int32_t first_item = min(items, team.rank * a_block);
  const int32_t rounds = min(items, first_item + a_block) - first_item;
  const int32_t first =
      (first_item * kTakeWarps + warp * rounds) * kRoundKeys + lane * kTokensAThread;
  uint32_t* const list = reinterpret_cast<uint32_t*>(bitmap) + bitmap_words;
  const TakeBlock block{team,
                        shared,
                        chain.Of(pair, chain.layout.keys),
                        bitmap,
                        {list, reinterpret_cast<int32_t*>(list) + list_room, list_room},
                        rounds,
                        first,
                        thread,
                        lane,
                        warp};

  KeyRange range = block.FindCoarse(chain, pair, state.w);
  block.TakeAboveRange(range);
  team.Sync();
  const int32_t listed = shared.listed;
  const bool is_listed = SumTeam(team, &shared.listed).most <= list_room;
  block.Narrow(is_listed, listed, &range);
  // If left == inside, all keys from `least` on are selected; otherwise those above it and the
  // first `left` ones of those equal to it.
  const bool has_ties = range.left < range.inside;
  const int32_t ties = block.CountTies(is_listed, listed, range);
  if (is_listed) {
    block.TakeListed(listed, range.least, has_ties, ties);
  } else {
    block.TakeAll(range.least, has_ties, ties);
  }
  __syncthreads();
  int32_t* next = selected_of_all + int64_t{pair} * max_rows + block.CountTaken();
  block.Write(OriginOf(state.y) + first, next);
  team.Sync();  // no block ends while others read its shared memory
}

// The largest number of blocks per cluster for which the stream's SMs have room several times: how
// many beyond 8 that may be depends on the GPU's partitions. 1: no clusters.
int LargestTeam(const CudaStream& stream) {
  if (!UseClusters()) return 1;
  LC_CUDA(cudaFuncSetAttribute(TakeKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  LC_CUDA(cudaFuncSetAttribute(TakeKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kMaxBitmapBytes + 8 * kMostListed)));
  for (int team : {kMaxTeam, 8}) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(team);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(team));
    config.blockDim = dim3(kTakeThreads);
    config.stream = stream.handle();
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, TakeKernel, &config) == cudaSuccess &&
        clusters >= 4) {
      return team;
    }
    cudaGetLastError();  // clears the error of a refusal
  }
  return 1;
}

// The same, cached for each GPU and number of SMs that streams have.
int KnownLargestTeam(const CudaStream& stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> of_sms;
  int device = 0;
  LC_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto [known, is_new] = of_sms.try_emplace({device, stream.sm_count()});
  if (is_new) known->second = LargestTeam(stream);
  return known->second;
}

}  // namespace

bool TakeInClusters(CudaStream& stream, const LiteCacheShape& shape, const LiteCacheLayer& layer,
                    const Chain& chain) {
  const int largest = KnownLargestTeam(stream);
  if (largest == 1) return false;
  const auto bitmap_of = [&](int64_t team) {
    return kItemBytes * static_cast<size_t>((chain.layout.items + team - 1) / team);
  };
  // No more blocks than run at once: for 128 pairs of 8,000 tokens teams of two take 9 us, teams of
  // eight 26.
  int team = largest;
  while (team > 2 && chain.pairs * team > kBlocksAnSm * stream.sm_count() &&
         bitmap_of(team / 2) <= kMaxBitmapBytes) {
    team /= 2;
  }
  const size_t bitmap = bitmap_of(team);
  if (bitmap > kMaxBitmapBytes) return false;
  // A sixteenth of the keys: one of the 32 bins between a number and its double rarely has more.
  const int64_t listed =
      std::clamp<int64_t>(static_cast<int64_t>(bitmap / 2), kLeastListed, kMostListed);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(team);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(chain.pairs * team));
  config.blockDim = dim3(kTakeThreads);
  config.dynamicSmemBytes = bitmap + 8 * static_cast<size_t>(listed);
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = MayOverlap(stream) ? 2 : 1;
  LC_CUDA(cudaLaunchKernelEx(&config, TakeKernel, chain, layer.selected, shape.max_rows,
                             static_cast<int32_t>(bitmap / 4), static_cast<int32_t>(listed)));
  NoteOverlapping(stream);
  return true;
}

}  // namespace litecache::ops::cuda
