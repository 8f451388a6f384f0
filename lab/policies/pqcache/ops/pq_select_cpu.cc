#include "lab/policies/pqcache/ops/pq_select_cpu.h"

#include <algorithm>
#include <vector>

#include "lab/policies/common/lloyd.h"
#include "ops/common/scratch.h"
#include "ops/select/softmax_jobs_cpu.h"

namespace litecache::lab::ops::cpu {
namespace {

constexpr int64_t kBlock = PqFormat::kBlockTokens;
static_assert(kBlock == kSoftmaxBlock);
constexpr int64_t kPqPieceTokens = 2048;  // tokens a thread scores at a time
constexpr int64_t kEncodeRows = 1024;

// Scores a block's 32 tokens for one query head with its tables [subspaces][clusters].
void ScoreBlock(const uint8_t* codes, const PqFormat& format, const float* tables, float* scores) {
  for (int64_t t = 0; t < kBlock; ++t) scores[t] = tables[codes[t]];
  for (int64_t s = 1; s < format.subspaces; ++s) {
    codes += kBlock;
    tables += format.clusters();
    for (int64_t t = 0; t < kBlock; ++t) scores[t] += tables[codes[t]];
  }
}

}  // namespace

void PqEncode(ThreadPool& pool, const PqFormat& format, int64_t head_dim,
              std::span<const PqEncodeWork> work) {
  struct Piece {
    const PqEncodeWork* work;
    int64_t part, begin, count;
  };
  std::vector<Piece> pieces;
  for (const PqEncodeWork& w : work) {
    for (int64_t part = 0; part < format.subspaces; ++part) {
      for (int64_t i = 0; i < w.count; i += kEncodeRows) {
        pieces.push_back({&w, part, i, std::min(kEncodeRows, w.count - i)});
      }
    }
  }
  const int64_t dim = head_dim / format.subspaces;
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch scratch;
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[static_cast<size_t>(p)];
      const PqEncodeWork& w = *piece.work;
      auto* labels = scratch.Reserve<int32_t>(static_cast<size_t>(piece.count));
      AssignNearest({.rows = w.keys + piece.begin * w.key_stride + piece.part * dim,
                     .stride = w.key_stride,
                     .count = piece.count,
                     .dim = dim},
                    w.centroids + piece.part * format.clusters() * dim, format.clusters(), labels);
      for (int64_t i = 0; i < piece.count; ++i) {
        *format.Code(w.metadata, w.begin + piece.begin + i, piece.part) =
            static_cast<uint8_t>(labels[i]);
      }
    }
  });
}

void PqSelect(ThreadPool& pool, const PqFormat& format, int64_t group, int64_t head_dim,
              std::span<PqSelectWork> work) {
  const int64_t dim = head_dim / format.subspaces, clusters = format.clusters();
  const int64_t table = format.subspaces * clusters;  // per query head
  // The unused codes at the end of a block may have any value of a byte, so tables have that
  // length.
  constexpr int64_t kCodes = 256;
  std::vector<float> tables(work.size() * static_cast<size_t>(group * table) + kCodes);
  for (size_t i = 0; i < work.size(); ++i) {
    for (int64_t j = 0; j < group; ++j) {
      const float* q = work[i].q + j * head_dim;
      float* row = tables.data() + (static_cast<int64_t>(i) * group + j) * table;
      for (int64_t s = 0; s < format.subspaces; ++s) {
        for (int64_t c = 0; c < clusters; ++c) {
          const float* centroid = work[i].centroids + (s * clusters + c) * dim;
          float sum = 0;
          for (int64_t x = 0; x < dim; ++x) sum += q[s * dim + x] * centroid[x];
          row[s * clusters + c] = sum;
        }
      }
    }
  }
  SelectBySoftmax(
      pool, work, group, kPqPieceTokens,
      [&](const PqSelectWork& w, int64_t begin, int64_t end, float* scores, int64_t stride) {
        const float* own = tables.data() + (&w - work.data()) * group * table;
        scores -= begin % kBlock;
        for (int64_t t = begin / kBlock * kBlock; t < end; t += kBlock, scores += kBlock) {
          const uint8_t* codes = format.Code(w.metadata, t, 0);
          for (int64_t j = 0; j < group; ++j) {
            ScoreBlock(codes, format, own + j * table, scores + j * stride);
          }
        }
      });
}

}  // namespace litecache::lab::ops::cpu
