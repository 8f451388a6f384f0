#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/select/hash.h"
#include "ops/cpu/select/jobs.h"
#include "ops/cpu/select/project.h"
#include "ops/cpu/select/select.h"
#include "ops/cpu/select/top_k.h"

namespace litecache::ops::cpu {
namespace {

// Keys hashed at once: their products with the weight stay in the L1 cache.
constexpr int64_t kEncodeRows = 24;
// Tokens a thread scores at a time.
constexpr int64_t kPieceTokens = 4096;
constexpr float kLargestNorm = 65504;  // of f16

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
    for (int64_t i = 0; i < w.count; i += kEncodeRows) {
      pieces.push_back({&w, i, std::min(kEncodeRows, w.count - i)});
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

void HashSelect(ThreadPool& pool, const HashFormat& format, int64_t group, int64_t head_dim,
                std::span<HashSelectWork> work) {
  constexpr int64_t kBlock = HashFormat::kBlockTokens;
  static thread_local std::vector<SelectJob> job_scratch;
  static thread_local std::vector<HashQuery> query_scratch;
  std::vector<SelectJob>& jobs = job_scratch;  // the workers' own are other objects
  std::vector<HashQuery>& queries = query_scratch;
  jobs.clear();
  queries.resize(work.size());
  const auto pieces_of = [&](int64_t job) {
    const Selection& s = work[static_cast<size_t>(job)].selection;
    return TokenPieces{s.begin, s.end, kPieceTokens};
  };
  // Scores of whole blocks, from the one that `begin` lies in.
  const auto origin_of = [](const Selection& s) { return s.begin / kBlock * kBlock; };
  for (const HashSelectWork& w : work) {
    jobs.push_back({pieces_of(static_cast<int64_t>(jobs.size())).count(),
                    static_cast<size_t>(w.selection.end - origin_of(w.selection) + kBlock)});
  }
  // A query's products read 64 KiB of weights, as long as scoring some thousand tokens.
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
      queries[static_cast<size_t>(i)] = MakeHashQuery(codes, group, format.words());
    }
  });
  const auto score = [&](int64_t job, int64_t index, float* scores) {
    const HashSelectWork& w = work[static_cast<size_t>(job)];
    const TokenPieces pieces = pieces_of(job);
    const int64_t origin = origin_of(w.selection);
    const int64_t end = pieces.End(index);
    const int64_t page_tokens = w.metadata.page_tokens;
    for (int64_t t = pieces.Begin(index) / kBlock * kBlock; t < end;) {
      const int64_t in_page = t % page_tokens;
      const int64_t blocks = (std::min(end - t, page_tokens - in_page) + kBlock - 1) / kBlock;
      HashScores(format, queries[static_cast<size_t>(job)], group,
                 w.metadata.pages[t / page_tokens] + in_page / kBlock * format.block_bytes(),
                 blocks, scores + t - origin);
      t += blocks * kBlock;
    }
  };
  const auto select = [&](int64_t job, float* scores) {
    Selection& s = work[static_cast<size_t>(job)].selection;
    FinishSelection(scores + s.begin - origin_of(s), s);
  };
  RunSelectJobs(pool, jobs, score, select);
}

}  // namespace litecache::ops::cpu
