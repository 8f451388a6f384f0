#include <cmath>

#include "ops/cuda/retrieve/lite_select.cuh"
#include "ops/cuda/sample/sample.h"
#include "ops/exp_weight.h"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kWeightBlock = 1024;  // engine/logits.h: tokens whose weights are summed in float
constexpr int32_t kSumLanes = 16;       // engine/logits.cc: partial sums of such a block
constexpr int32_t kMostBlocks = kTeamThreads;  // of a vocabulary: a thread each
constexpr int32_t kBars = 8;                   // that one pass weighs the tokens above
constexpr int32_t kPerThread = kMostCandidates / kTeamThreads;

struct Best {
  float value = -INFINITY;
  int32_t id = INT32_MAX;
  int32_t finite = 1;

  __device__ void Take(float other, int32_t other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
};

struct SampleShared {
  TopKShared top_k;
  Best warp_best[kTeamWarps];
  Best best[2];  // of this block
  Best team_best;
  double warp_sums[kTeamWarps][kBars];
  double sums[3][kBars];
  double team_sums[kBars];
  int32_t collected;
  float all_block_sums[kMostBlocks];  // of rank 0: the whole team's
  double total;
  double left;
  int32_t block;
  double warp_scan[kTeamWarps];
  int32_t hit, last;
};

template <typename T>
__device__ T* OfRank(const ClusterTeam& team, T* shared, int rank) {
  return const_cast<T*>(team.Of(shared, rank));
}

// The best of all tokens of the row, on every thread of the team. slot: one a use, since another
// block may still read the last one's.
__device__ Best TeamBest(const ClusterTeam& team, SampleShared& shared, Best best, int slot) {
  const auto warp_best = [&] {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float value = __shfl_xor_sync(kFullMask, best.value, step);
      const int32_t id = __shfl_xor_sync(kFullMask, best.id, step);
      best.Take(value, id);
    }
    best.finite = __all_sync(kFullMask, best.finite);
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_best();
  __syncthreads();
  if (lane == 0) shared.warp_best[warp] = best;
  __syncthreads();
  if (warp == 0) {
    best = shared.warp_best[lane];
    warp_best();
    if (lane == 0) shared.best[slot] = best;
  }
  team.Sync();
  if (warp == 0) {
    best = lane < team.size ? *team.Of(&shared.best[slot], lane) : Best();
    warp_best();
    if (lane == 0) shared.team_best = best;
  }
  __syncthreads();
  return shared.team_best;
}

// Sums of kCount values over the team's threads, on every thread; slots as TeamBest's.
template <int kCount>
__device__ void TeamSums(const ClusterTeam& team, SampleShared& shared, double (&values)[kCount],
                         int slot) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const double sum = WarpSum(values[i]);
    if (lane == 0) shared.warp_sums[warp][i] = sum;
  }
  __syncthreads();
  if (warp < kCount) {
    const double sum = WarpSum(shared.warp_sums[lane][warp]);
    if (lane == 0) shared.sums[slot][warp] = sum;
  }
  team.Sync();
  if (warp < kCount) {
    const double sum = WarpSum(lane < team.size ? *team.Of(&shared.sums[slot][warp], lane) : 0.0);
    if (lane == 0) shared.team_sums[warp] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = shared.team_sums[i];
}

// Sum of the values of the block's threads before this one; total: of all.
__device__ double BlockExclusiveSum(SampleShared& shared, double value, double* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto inclusive = [lane](double sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double below = __shfl_up_sync(kFullMask, sum, offset);
      if (lane >= offset) sum += below;
    }
    return sum;
  };
  const double sum = inclusive(value);
  __syncthreads();
  if (lane == 31) shared.warp_scan[warp] = sum;
  __syncthreads();
  const double warps = inclusive(shared.warp_scan[lane]);
  *total = __shfl_sync(kFullMask, warps, 31);
  const double before = __shfl_sync(kFullMask, warps, warp > 0 ? warp - 1 : 0);
  return (warp > 0 ? before : 0.0) + sum - value;
}

__device__ __forceinline__ float LogitOf(uint32_t ordered) {
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// One row: what all threads of its team share.
struct Job {
  const SampleRow& row;
  const float* raw;  // [vocab], the model's
  int32_t vocab;
  float* x;  // [count], this block's tokens: with bias and penalties
  int32_t first, count;
  int32_t slice;  // tokens a block, a multiple of kWeightBlock
  uint64_t* candidates;
};

__device__ void ApplyMask(const Job& job, const uint32_t* masks) {
  const uint32_t* mask = masks + job.row.mask_begin;
  for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
    const int32_t token = job.first + i;
    if ((mask[token / 32] >> (token % 32) & 1u) == 0) job.x[i] = -INFINITY;
  }
  __syncthreads();
}

__device__ void ApplyChanges(const Job& job, const LogitChange* changes) {
  const SampleRow& row = job.row;
  const LogitChange* biases = changes + row.changes_begin;
  for (int32_t i = threadIdx.x; i < row.biases; i += kTeamThreads) {
    const int32_t t = biases[i].token - job.first;
    if (t >= 0 && t < job.count) job.x[t] = __fadd_rn(job.x[t], biases[i].bias);
  }
  __syncthreads();
  const LogitChange* seen = biases + row.biases;
  for (int32_t i = threadIdx.x; i < row.seen; i += kTeamThreads) {
    const int32_t t = seen[i].token - job.first;
    if (t < 0 || t >= job.count) continue;
    float logit = job.x[t];
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0 ? __fdiv_rn(logit, row.repetition_penalty)
                        : __fmul_rn(logit, row.repetition_penalty);
    }
    logit =
        __fsub_rn(logit, __double2float_rn(__dmul_rn(row.frequency_penalty, seen[i].generated)));
    if (seen[i].generated > 0) logit = __fsub_rn(logit, row.presence_penalty);
    job.x[t] = logit;
  }
  __syncthreads();
}

// exp((x - max) / temperature) as engine::Weights has it.
__device__ __forceinline__ float Weight(const Job& job, float max, int32_t i) {
  return ExpOfNonPositive(__fmul_rn(__fsub_rn(job.x[i], max), job.row.inverse_temperature));
}

// Sums of the weights of each kWeightBlock tokens, their total and, for the draw, the block of
// tokens it falls into and what is left there.
__device__ void SumWeights(const ClusterTeam& team, SampleShared& shared, const Job& job,
                           float max) {
  const int lane = threadIdx.x % kSumLanes;
  const unsigned half = 0xffffu << (threadIdx.x % 32 / kSumLanes * kSumLanes);
  const int32_t blocks = (job.count + kWeightBlock - 1) / kWeightBlock;
  float* all = OfRank(team, &shared.all_block_sums[job.first / kWeightBlock], 0);
  for (int32_t b = threadIdx.x / kSumLanes; b < blocks; b += kTeamThreads / kSumLanes) {
    const int32_t begin = b * kWeightBlock, end = min(job.count, begin + kWeightBlock);
    const int32_t full = begin + (end - begin) / kSumLanes * kSumLanes;
    float of_lane = 0;
#pragma unroll 4
    for (int32_t i = begin; i < full; i += kSumLanes) {
      of_lane = __fadd_rn(of_lane, Weight(job, max, i + lane));
    }
    float sum = 0;
    for (int32_t i = full; i < end; ++i) sum = __fadd_rn(sum, Weight(job, max, i));
#pragma unroll
    for (int j = 0; j < kSumLanes; ++j) {
      sum = __fadd_rn(sum, __shfl_sync(half, of_lane, j, kSumLanes));
    }
    if (lane == 0) all[b] = sum;
  }
  team.Sync();
  const int32_t all_blocks = (job.vocab + kWeightBlock - 1) / kWeightBlock;
  const auto b = static_cast<int32_t>(threadIdx.x);
  const float mine = b < all_blocks ? team.Of(shared.all_block_sums, 0)[b] : 0.0f;
  double total;
  const double before = BlockExclusiveSum(shared, static_cast<double>(mine), &total);
  const double left = job.row.uniform * total;
  if (b == 0) {
    shared.total = total;
    shared.block = 0;
  }
  __syncthreads();
  if (b > 0 && b < all_blocks && before <= left) atomicMax(&shared.block, b);
  __syncthreads();
  if (b == shared.block) shared.left = left - before;
  __syncthreads();
}

// The token of the draw in its block of tokens; -1 on the blocks that do not have it.
__device__ int32_t DrawInBlock(SampleShared& shared, const Job& job, const Best& best) {
  const float max = best.value;
  const int32_t begin = shared.block * kWeightBlock - job.first;
  if (begin < 0 || begin >= job.count) return -1;
  if (threadIdx.x == 0) {
    shared.hit = INT32_MAX;
    shared.last = begin;
  }
  const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
  const double weight = i < job.count ? static_cast<double>(Weight(job, max, i)) : 0.0;
  double total;
  const double before = BlockExclusiveSum(shared, weight, &total);  // has barriers
  if (weight > 0) {
    if (before + weight > shared.left) atomicMin(&shared.hit, i);
    atomicMax(&shared.last, i);  // rounding must not draw an impossible token
  }
  __syncthreads();
  const int32_t chosen = shared.hit != INT32_MAX ? shared.hit : shared.last;
  return job.x[chosen] == -INFINITY ? best.id : job.first + chosen;
}

// How far below the best token, in units of the temperature, the tokens reach whose weights are at
// least `wanted`; infinity where eight bars do not tell.
__device__ float NucleusDepth(const ClusterTeam& team, SampleShared& shared, const Job& job,
                              float max, double wanted) {
  // Sums of floats in another order than the host's, whose rounding must not cost a token.
  const double enough = wanted * (1 + 1e-5);
  float low = 0, depths[kBars] = {1, 2, 4, 6, 8, 12, 16, 24};
  for (int round = 0; round < 2; ++round) {
    float masses[kBars] = {};
    for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
      const float depth = __fmul_rn(__fsub_rn(max, job.x[i]), job.row.inverse_temperature);
      const float weight = ExpOfNonPositive(-depth);
#pragma unroll
      for (int bar = 0; bar < kBars; ++bar) masses[bar] += depth <= depths[bar] ? weight : 0.0f;
    }
    double sums[kBars];
#pragma unroll
    for (int bar = 0; bar < kBars; ++bar) sums[bar] = static_cast<double>(masses[bar]);
    TeamSums(team, shared, sums, 1 + round);
    float found = INFINITY, below = low;
#pragma unroll
    for (int bar = kBars - 1; bar >= 0; --bar) {
      if (sums[bar] < enough) break;
      found = depths[bar];
      below = bar > 0 ? depths[bar - 1] : low;
    }
    if (round == 1 || found == INFINITY) return found;
    low = below;
#pragma unroll
    for (int bar = 0; bar < kBars; ++bar) {
      depths[bar] =
          bar == kBars - 1 ? found : low + (found - low) * static_cast<float>(bar + 1) / kBars;
    }
  }
  return INFINITY;
}

// Brings the tokens that key_at and the threshold take to rank 0's candidates, in the order of
// their ids, with keys that sort by logit, the lower id first among equals. Returns how many there
// are, which may be more than there is room for.
template <class KeyAt>
__device__ int32_t Collect(const ClusterTeam& team, SampleShared& shared, const Job& job,
                           const Threshold& threshold, const KeyAt& key_at) {
  uint64_t* candidates = OfRank(team, job.candidates, 0);
  TakeAbove(team, shared.top_k, job.count, threshold, key_at, [&](int32_t order, int32_t i) {
    if (order >= kMostCandidates) return;
    candidates[order] =
        uint64_t{OrderedKey(job.x[i])} << 32 | (0xffffffffu - static_cast<uint32_t>(job.first + i));
  });
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    const bool has = lane < team.size;
    const int32_t greater =
        __reduce_add_sync(kFullMask, has ? *team.Of(&shared.top_k.greater, lane) : 0);
    const int32_t equal =
        __reduce_add_sync(kFullMask, has ? *team.Of(&shared.top_k.equal, lane) : 0);
    if (lane == 0) shared.collected = greater + min(equal, threshold.ties);
  }
  team.Sync();
  return shared.collected;
}

// Descending, by one block.
__device__ void SortCandidates(uint64_t* keys, int32_t count) {
  int32_t size = 2;
  while (size < count) size *= 2;
  for (int32_t i = count + static_cast<int32_t>(threadIdx.x); i < size; i += kTeamThreads) {
    keys[i] = 0;
  }
  __syncthreads();
  for (int32_t run = 2; run <= size; run *= 2) {
    for (int32_t distance = run / 2; distance > 0; distance /= 2) {
      for (int32_t pair = threadIdx.x; pair < size / 2; pair += kTeamThreads) {
        const int32_t i = 2 * pair - (pair & (distance - 1));
        const uint64_t a = keys[i], b = keys[i + distance];
        if ((a < b) == ((i & run) == 0)) {
          keys[i] = b;
          keys[i + distance] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The draw among rank 0's candidates: those whose weights before them are below `wanted` (a share
// of their own total where share > 0) and that reach min-p. One block.
__device__ int32_t DrawCandidate(SampleShared& shared, const Job& job, const Best& best,
                                 int32_t count, double wanted, double share) {
  const float max = best.value;
  const int32_t each = (count + kTeamThreads - 1) / kTeamThreads;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * each;
  double weights[kPerThread];
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    weights[j] = 0;
    if (j < each && begin + j < count) {
      const float logit = LogitOf(static_cast<uint32_t>(job.candidates[begin + j] >> 32));
      weights[j] =
          exp((static_cast<double>(logit) - static_cast<double>(max)) / job.row.temperature);
    }
    sum += weights[j];
  }
  double total;
  double before = BlockExclusiveSum(shared, sum, &total);
  if (share > 0) wanted = share * total;
  sum = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const double weight = weights[j];
    // The most likely candidate has weight 1.
    if (before >= wanted || weight < job.row.min_p) weights[j] = -1;
    before += weight;
    if (weights[j] > 0) sum += weights[j];
  }
  if (threadIdx.x == 0) {
    shared.hit = INT32_MAX;
    shared.last = 0;
  }
  before = BlockExclusiveSum(shared, sum, &total);  // has barriers
  const double left = job.row.uniform * total;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    if (j >= each || begin + j >= count || weights[j] < 0) continue;
    before += weights[j];
    if (before > left) atomicMin(&shared.hit, begin + j);
    atomicMax(&shared.last, begin + j);
  }
  __syncthreads();
  const int32_t chosen = shared.hit != INT32_MAX ? shared.hit : shared.last;
  const uint64_t key = job.candidates[chosen];
  if (LogitOf(static_cast<uint32_t>(key >> 32)) == -INFINITY) return best.id;
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Fills `out` where this block knows the token; every block of the team passes the same barriers.
__device__ void Filter(const ClusterTeam& team, SampleShared& shared, const Job& job,
                       const Best& best, SampledToken* out) {
  const SampleRow& row = job.row;
  double wanted = INFINITY, share = 0;
  int32_t count = 0;
  if (row.mode == SampleMode::kTopK) {
    const auto key_at = [&](int32_t i) { return OrderedKey(job.x[i]); };
    const Threshold threshold = FindThreshold(team, shared.top_k, job.count, row.top_k, key_at);
    count = Collect(team, shared, job, threshold, key_at);
    if (row.top_p < 1.0) share = row.top_p;
  } else if (row.mode == SampleMode::kNucleus) {
    SumWeights(team, shared, job, best.value);
    wanted = row.top_p * shared.total;
    const float depth = NucleusDepth(team, shared, job, best.value, wanted);
    count = Collect(team, shared, job, {0, 0}, [&](int32_t i) -> uint32_t {
      return __fmul_rn(__fsub_rn(best.value, job.x[i]), row.inverse_temperature) <= depth ? 1 : 0;
    });
  } else {
    const double bar = static_cast<double>(best.value) + row.temperature * log(row.min_p);
    const double low = bar - 1e-3 * fabs(bar);
    count = Collect(team, shared, job, {0, 0}, [&](int32_t i) -> uint32_t {
      return static_cast<double>(job.x[i]) >= low ? 1 : 0;
    });
  }
  out->candidates = count;
  if (count > kMostCandidates) {
    out->status = SampledToken::kTooMany;
    out->token = 0;
    return;
  }
  if (team.rank != 0) return;
  if (row.mode != SampleMode::kMinP) {
    SortCandidates(job.candidates, count);
  } else {
    // In the order of ids, but for the best, which changes places with the first.
    const uint64_t key =
        uint64_t{OrderedKey(best.value)} << 32 | (0xffffffffu - static_cast<uint32_t>(best.id));
    for (int32_t i = threadIdx.x; i < count; i += kTeamThreads) {
      if (i > 0 && job.candidates[i] == key) {
        job.candidates[i] = job.candidates[0];
        job.candidates[0] = key;
      }
    }
    __syncthreads();
  }
  out->token = DrawCandidate(shared, job, best, count, wanted, share);
}

__global__ void __launch_bounds__(kTeamThreads, 1)
    SampleKernel(const float* logits, int64_t stride, int32_t vocab, const SampleRow* rows,
                 const LogitChange* changes, const uint32_t* masks, SampledToken* outputs,
                 int32_t slice, int32_t candidate_bytes, float* scratch) {
  extern __shared__ uint4 dynamic[];
  __shared__ SampleShared shared;
  const ClusterTeam team;
  const int32_t index = static_cast<int32_t>(blockIdx.x) / team.size;
  const SampleRow& row = rows[index];
  const int32_t first = min(vocab, team.rank * slice);
  const Job job{row,
                logits + row.logit_row * stride,
                vocab,
                scratch == nullptr
                    ? reinterpret_cast<float*>(dynamic) + candidate_bytes / sizeof(float)
                    : scratch + (int64_t{index} * team.size + team.rank) * slice,
                first,
                min(slice, vocab - first),
                slice,
                reinterpret_cast<uint64_t*>(dynamic)};
  Best best;
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
    const float x = job.raw[first + i];
    best.Take(x, first + i);
    if (!isfinite(x)) best.finite = 0;
    job.x[i] = x;
  }
  best = TeamBest(team, shared, best, 0);
  SampledToken out{};
  out.token = -1;
  if (best.finite == 0) {
    out.status = SampledToken::kNotFinite;
    out.token = 0;
  } else {
    double log_sum = 0;
    if (row.logprob != 0) {
      double sum[1] = {0};
      float of_thread = 0;
      for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
        of_thread += ExpOfNonPositive(__fsub_rn(job.x[i], best.value));
      }
      sum[0] = static_cast<double>(of_thread);
      TeamSums(team, shared, sum, 0);
      log_sum = static_cast<double>(best.value) + log(sum[0]);
    }
    if (row.mask_begin >= 0 || row.biases + row.seen > 0) {
      __syncthreads();  // others may still read what changes here
      if (row.mask_begin >= 0) ApplyMask(job, masks);
      ApplyChanges(job, changes);
      best = Best();
      for (int32_t i = threadIdx.x; i < job.count; i += kTeamThreads) {
        best.Take(job.x[i], first + i);
      }
      best = TeamBest(team, shared, best, 1);
    }
    if (row.mode == SampleMode::kGreedy) {
      out.token = team.rank == 0 ? best.id : -1;
    } else if (row.mode == SampleMode::kAll) {
      SumWeights(team, shared, job, best.value);
      out.token = DrawInBlock(shared, job, best);
    } else {
      Filter(team, shared, job, best, &out);
    }
    if (row.logprob != 0 && out.token >= 0) {
      out.logprob = static_cast<float>(static_cast<double>(job.raw[out.token]) - log_sum);
    }
  }
  // One block knows the token; what is no token all of them know.
  const bool writes = out.status == SampledToken::kOk ? out.token >= 0 : team.rank == 0;
  if (writes && threadIdx.x == 0) outputs[index] = out;
  team.Sync();  // no block ends while others read its shared memory
}

// How a launch divides rows.
struct Division {
  int team = 1;
  int32_t slice = 0;
  size_t shared_bytes = 0;
  bool in_shared = false;  // tokens beside the candidates
};

constexpr size_t kCandidateBytes = size_t{kMostCandidates} * sizeof(uint64_t);

Division Divide(int team, int64_t vocab, size_t limit) {
  Division division;
  division.team = team;
  const int64_t blocks = (vocab + kWeightBlock - 1) / kWeightBlock;
  division.slice = static_cast<int32_t>((blocks + team - 1) / team * kWeightBlock);
  const size_t bytes = kCandidateBytes + sizeof(float) * static_cast<size_t>(division.slice);
  division.in_shared = bytes <= limit;
  division.shared_bytes = division.in_shared ? bytes : kCandidateBytes;
  return division;
}

size_t SampleSharedLimit() {
  return static_cast<size_t>(DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) -
         sizeof(SampleShared) - 1024;
}

void CheckVocab(int64_t vocab) {
  LC_CHECK(vocab >= 1 && vocab <= int64_t{kMostBlocks} * kWeightBlock);
}

}  // namespace

size_t SampleScratchBytes(Stream& stream, int64_t rows, int64_t vocab) {
  CheckVocab(vocab);
  // The smallest team that is launched: the largest scratch.
  const bool clusters = DeviceAttribute(cudaDevAttrClusterLaunch) != 0;
  const Division division = Divide(clusters ? 8 : 1, vocab, SampleSharedLimit());
  if (division.in_shared) return 0;
  const int64_t blocks = (vocab + kWeightBlock - 1) / kWeightBlock;
  return static_cast<size_t>(rows * (blocks + kMaxTeam) * kWeightBlock) * sizeof(float);
}

void SampleTokens(Stream& stream, const MatrixView& logits, const SampleRow* rows, int64_t count,
                  const LogitChange* changes, const uint32_t* masks, SampledToken* out,
                  void* scratch) {
  CheckVocab(logits.cols);
  LC_CHECK(logits.dtype == DType::kF32);
  if (count == 0) return;
  const CudaStream& cuda = AsCuda(stream);
  const size_t limit = SampleSharedLimit();
  WithLargestTeam(cuda, static_cast<int>(count), [&](int team) {
    const Division division = Divide(team, logits.cols, limit);
    LC_CHECK(division.in_shared || scratch != nullptr);
    return LaunchTeams(SampleKernel, cuda, static_cast<int>(count), team, division.shared_bytes,
                       limit, logits.Row<const float>(0), logits.stride,
                       static_cast<int32_t>(logits.cols), rows, changes, masks, out, division.slice,
                       static_cast<int32_t>(kCandidateBytes),
                       division.in_shared ? nullptr : static_cast<float*>(scratch));
  });
}

void ReceiveLogits(Stream& stream, const MatrixView& logits, int64_t row, int64_t rows,
                   float* host) {
  LC_CHECK(logits.stride == logits.cols);
  LC_CUDA(cudaMemcpyAsync(host, logits.Row<const float>(row),
                          static_cast<size_t>(rows * logits.cols) * sizeof(float),
                          cudaMemcpyDeviceToHost, AsCuda(stream).handle()));
}

}  // namespace litecache::ops::cuda
