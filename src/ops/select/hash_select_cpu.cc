#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "ops/common/scratch.h"
#include "ops/select/hash_cpu.h"
#include "ops/select/jobs_cpu.h"
#include "ops/select/project_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/softmax_jobs_cpu.h"
#include "ops/select/top_k_cpu.h"

namespace litecache::ops::cpu {
namespace {

// Keys hashed together: their products with the weight stay in the L1 cache.
constexpr int64_t kHashEncodeRows = 24;
// Tokens a thread scores at a time.
constexpr int64_t kHashPieceTokens = 4096;
constexpr int64_t kSoftmaxPieceTokens = 2048;  // with one score per head
constexpr float kLargestNorm = 65504;          // largest f16

void EncodeRows(const HashFormat& format, int64_t head_dim, const HashEncodeWork& w, int64_t begin,
                int64_t count) {
  static thread_local Scratch scratch;
  const float* keys = w.keys + begin * w.key_stride;
  auto* products = scratch.Reserve<float>(static_cast<size_t>(count * format.bits));
  Project(keys, w.key_stride, count, head_dim, w.weight, format.bits, products);
  uint32_t code[HashQuery::kMaxWords];
  for (int64_t i = 0; i < count; ++i) {
    PackSigns(products + i * format.bits, format.words(), code);
    const int64_t token = w.begin + begin + i;
    const int64_t in_page = token % w.metadata.page_tokens;
    const int64_t in_block = in_page % HashFormat::kBlockTokens;
    std::byte* block = w.metadata.pages[token / w.metadata.page_tokens] +
                       in_page / HashFormat::kBlockTokens * format.block_bytes();
    auto* words = reinterpret_cast<uint32_t*>(block);
    for (int64_t j = 0; j < format.words(); ++j) {
      words[j * HashFormat::kBlockTokens + in_block] = code[j];
    }
    if (!format.norms) continue;
    auto* norms = reinterpret_cast<f16*>(words + format.words() * HashFormat::kBlockTokens);
    norms[in_block] = f16(std::min(Norm(keys + i * w.key_stride, head_dim), kLargestNorm));
  }
}

}  // namespace

void HashEncode(ThreadPool& pool, const HashFormat& format, int64_t head_dim,
                std::span<const HashEncodeWork> work) {
  struct Piece {
    const HashEncodeWork* work;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (const HashEncodeWork& w : work) {
    for (int64_t i = 0; i < w.count; i += kHashEncodeRows) {
      pieces.push_back({&w, i, std::min(kHashEncodeRows, w.count - i)});
    }
  }
  const auto count = static_cast<int64_t>(pieces.size());
  pool.ParallelFor(count, 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      EncodeRows(format, head_dim, *piece.work, piece.begin, piece.count);
    }
  });
}

namespace {

// Each work item's codes [group][words] and, if requested, its heads' lengths [group]. A query's
// products read 64 KiB of weights, which takes as long as scoring some thousand tokens.
template <class Use>
void HashQueries(ThreadPool& pool, const HashFormat& format, int64_t group, int64_t head_dim,
                 std::span<const HashSelectWork> work, const Use& use) {
  pool.ParallelFor(static_cast<int64_t>(work.size()), 1, [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch product_scratch, code_scratch;
    auto* products = product_scratch.Reserve<float>(static_cast<size_t>(group * format.bits));
    auto* codes = code_scratch.Reserve<uint32_t>(static_cast<size_t>(group * format.words()));
    for (int64_t i = begin; i < end; ++i) {
      const HashSelectWork& w = work[static_cast<size_t>(i)];
      Project(w.q, head_dim, group, head_dim, w.weight, format.bits, products);
      for (int64_t j = 0; j < group; ++j) {
        PackSigns(products + j * format.bits, format.words(), codes + j * format.words());
      }
      use(static_cast<size_t>(i), codes);
    }
  });
}

// Calls score(data, blocks, t) for runs of whole blocks that contain tokens [begin, end); t is the
// first token of the run.
template <class Score>
void ForBlocks(const HashFormat& format, const PagedMetadata& metadata, int64_t begin, int64_t end,
               const Score& score) {
  constexpr int64_t kBlock = HashFormat::kBlockTokens;
  for (int64_t t = begin / kBlock * kBlock; t < end;) {
    const int64_t in_page = t % metadata.page_tokens;
    const int64_t blocks =
        (std::min(end - t, metadata.page_tokens - in_page) + kBlock - 1) / kBlock;
    score(metadata.pages[t / metadata.page_tokens] + in_page / kBlock * format.block_bytes(),
          blocks, t);
    t += blocks * kBlock;
  }
}

void SelectBySum(ThreadPool& pool, const HashFormat& format, int64_t group, int64_t head_dim,
                 std::span<HashSelectWork> work) {
  constexpr int64_t kBlock = HashFormat::kBlockTokens;
  static thread_local std::vector<SelectJob> job_scratch;
  static thread_local std::vector<HashQuery> query_scratch;
  // A reference, because the worker threads' own thread_local objects are different ones.
  std::vector<SelectJob>& jobs = job_scratch;
  std::vector<HashQuery>& queries = query_scratch;
  jobs.clear();
  queries.resize(work.size());
  const auto pieces_of = [&](int64_t job) {
    const Selection& s = work[static_cast<size_t>(job)].selection;
    return TokenPieces{s.begin, s.end, kHashPieceTokens};
  };
  // Scores are for whole blocks, starting with the one that contains `begin`.
  const auto origin_of = [](const Selection& s) { return s.begin / kBlock * kBlock; };
  for (const HashSelectWork& w : work) {
    jobs.push_back({pieces_of(static_cast<int64_t>(jobs.size())).count(),
                    static_cast<size_t>(w.selection.end - origin_of(w.selection) + kBlock)});
  }
  HashQueries(pool, format, group, head_dim, work, [&](size_t i, const uint32_t* codes) {
    queries[i] = MakeHashQuery(codes, group, format.words());
  });
  const auto score = [&](int64_t job, int64_t index, float* scores) {
    const HashSelectWork& w = work[static_cast<size_t>(job)];
    const TokenPieces pieces = pieces_of(job);
    const int64_t origin = origin_of(w.selection);
    ForBlocks(format, w.metadata, pieces.Begin(index), pieces.End(index),
              [&](const std::byte* data, int64_t blocks, int64_t t) {
                HashScores(format, queries[static_cast<size_t>(job)], group, data, blocks,
                           scores + t - origin);
              });
  };
  const auto select = [&](int64_t job, float* scores) {
    Selection& s = work[static_cast<size_t>(job)].selection;
    FinishSelection(scores + s.begin - origin_of(s), s);
  };
  RunSelectJobs(pool, jobs, score, select);
}

void SelectByHashedSoftmax(ThreadPool& pool, const HashFormat& format, int64_t group,
                           int64_t head_dim, std::span<HashSelectWork> work) {
  constexpr int64_t kBlock = HashFormat::kBlockTokens;
  static_assert(kBlock == kSoftmaxBlock);
  static thread_local std::vector<uint32_t> code_scratch;
  static thread_local std::vector<float> length_scratch;
  std::vector<uint32_t>& codes = code_scratch;
  std::vector<float>& lengths = length_scratch;
  const int64_t words = group * format.words();
  codes.resize(work.size() * static_cast<size_t>(words));
  lengths.resize(work.size() * static_cast<size_t>(group));
  HashQueries(pool, format, group, head_dim, work, [&](size_t i, const uint32_t* code) {
    std::copy_n(code, words, codes.data() + static_cast<int64_t>(i) * words);
    for (int64_t j = 0; j < group; ++j) {
      lengths[i * static_cast<size_t>(group) + static_cast<size_t>(j)] =
          Norm(work[i].q + j * head_dim, head_dim);
    }
  });
  SelectBySoftmax(
      pool, work, group, kSoftmaxPieceTokens,
      [&](const HashSelectWork& w, int64_t begin, int64_t end, float* scores, int64_t stride) {
        const int64_t i = &w - work.data();
        ForBlocks(format, w.metadata, begin, end,
                  [&](const std::byte* data, int64_t blocks, int64_t t) {
                    HashHeadScores(format, codes.data() + i * words, lengths.data() + i * group,
                                   group, data, blocks, scores + (t - begin), stride);
                  });
      });
}

}  // namespace

void HashSelect(ThreadPool& pool, const HashFormat& format, HashScore score, int64_t group,
                int64_t head_dim, std::span<HashSelectWork> work) {
  if (score == HashScore::kSum) {
    SelectBySum(pool, format, group, head_dim, work);
  } else {
    SelectByHashedSoftmax(pool, format, group, head_dim, work);
  }
}

}  // namespace litecache::ops::cpu
