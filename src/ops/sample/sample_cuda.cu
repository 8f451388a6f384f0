// Samples the next tokens from rows of logits: biases and penalties, then the best token, a draw
// from all tokens, or a draw from a subset (sample_filter.cuh).
#include <cmath>

#include "ops/common/thread_block_clusters_cuda.h"
#include "ops/sample/exp_weight.h"
#include "ops/sample/sample_cuda.h"
#include "ops/sample/sample_filter.cuh"
#include "ops/sample/sample_row.cuh"

namespace litecache::ops::cuda {
namespace sampling {
namespace {

// The token that is drawn from all of them, on every thread of rank 0's block; -1 in the others.
__device__ int32_t DrawToken(const ClusterTeam& team, SampleShared& shared, const Job& job,
                             float max) {
  FirstArrival first;
  const int32_t counters = (job.count + kRaceBlock - 1) / kRaceBlock * kRaceLanes;
  for (int32_t c = threadIdx.x; c < counters; c += kTeamThreads) {
    // A slice begins at a multiple of kWeightBlock, which is one of kRaceBlock.
    const PhiloxWords words = RaceWords(job.row.draw, static_cast<uint32_t>(job.first / 4 + c));
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t i = c / kRaceLanes * kRaceBlock + j * kRaceLanes + c % kRaceLanes;
      if (i >= job.count) continue;
      const auto weight = static_cast<double>(Weight(job, max, i));
      // Most tokens would come later than the thread's first one even if their rest were nothing.
      if (words.word[j] * kWordUnit >= first.time * weight) continue;
      const int32_t token = job.first + i;
      first.Take(ExponentialOf(job.row.draw, token, words.word[j]) / weight, token);
    }
  }
  first = BlockFirst(shared, first);
  if (threadIdx.x == 0) shared.first = first;
  team.Sync();
  if (team.rank != 0) return -1;
  for (int rank = 1; rank < team.size; ++rank) {
    const FirstArrival* other = team.Of(&shared.first, rank);
    first.Take(other->time, other->token);
  }
  return first.token;
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
      __syncthreads();  // others may still read what is changed here
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
      out.token = DrawToken(team, shared, job, best.value);
    } else {
      Filter(team, shared, job, best, &out);
    }
    if (row.logprob != 0 && out.token >= 0) {
      out.logprob = static_cast<float>(static_cast<double>(job.raw[out.token]) - log_sum);
    }
  }
  // One thread block knows the token; all of them know a status without a token.
  const bool writes = out.status == SampledToken::kOk ? out.token >= 0 : team.rank == 0;
  if (writes && threadIdx.x == 0) outputs[index] = out;
  team.Sync();  // no block ends while others read its shared memory
}

// How a launch divides rows among blocks.
struct Division {
  int team = 1;
  int32_t slice = 0;
  size_t shared_bytes = 0;
  bool in_shared = false;  // tokens are kept in shared memory beside the candidates
};

// For most vocabularies, a row fits into the shared memory of this many blocks.
constexpr int kLeastTeam = 8;
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
}  // namespace sampling

size_t SampleScratchBytes(Stream& stream, int64_t rows, int64_t vocab) {
  sampling::CheckVocab(vocab);
  // The smallest team that may be launched needs the largest scratch.
  const sampling::Division division = sampling::Divide(UseClusters() ? sampling::kLeastTeam : 1,
                                                       vocab, sampling::SampleSharedLimit());
  if (division.in_shared) return 0;
  const int64_t blocks = (vocab + sampling::kWeightBlock - 1) / sampling::kWeightBlock;
  return static_cast<size_t>(rows * (blocks + kMaxTeam) * sampling::kWeightBlock) * sizeof(float);
}

void SampleTokens(Stream& stream, const MatrixView& logits, const SampleRow* rows, int64_t count,
                  const LogitChange* changes, const uint32_t* masks, SampledToken* out,
                  void* scratch) {
  sampling::CheckVocab(logits.cols);
  LC_CHECK(logits.dtype == DType::kF32);
  if (count == 0) return;
  const CudaStream& cuda = AsCuda(stream);
  const size_t limit = sampling::SampleSharedLimit();
  const auto launch = [&](int team) {
    const sampling::Division division = sampling::Divide(team, logits.cols, limit);
    LC_CHECK(division.in_shared || scratch != nullptr);
    return LaunchTeams(sampling::SampleKernel, cuda, static_cast<int>(count), team,
                       division.shared_bytes, limit, logits.Row<const float>(0), logits.stride,
                       static_cast<int32_t>(logits.cols), rows, changes, masks, out, division.slice,
                       static_cast<int32_t>(sampling::kCandidateBytes),
                       division.in_shared ? nullptr : static_cast<float*>(scratch));
  };
  WithLargestTeam(cuda, static_cast<int>(count), launch, sampling::kLeastTeam);
}

void ReceiveLogits(Stream& stream, const MatrixView& logits, int64_t row, int64_t rows,
                   float* host) {
  LC_CHECK(logits.stride == logits.cols);
  LC_CUDA(cudaMemcpyAsync(host, logits.Row<const float>(row),
                          static_cast<size_t>(rows * logits.cols) * sizeof(float),
                          cudaMemcpyDeviceToHost, AsCuda(stream).handle()));
}

}  // namespace litecache::ops::cuda
