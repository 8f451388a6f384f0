#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "ops/common/scratch.h"
#include "ops/select/project_cpu.h"
#include "ops/select/projection_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/softmax_jobs_cpu.h"

namespace litecache::ops::cpu {
namespace {

constexpr int64_t kProjectionBlock = ProjectionFormat::kBlockTokens;
static_assert(kProjectionBlock == kSoftmaxBlock);
constexpr int64_t kProjectionEncodeRows = 96;     // keys projected together
constexpr int64_t kProjectionPieceTokens = 2048;  // tokens a thread scores at a time

void EncodeRows(const ProjectionFormat& format, int64_t head_dim, const ProjectionEncodeWork& w,
                int64_t begin, int64_t count) {
  static thread_local Scratch scratch;
  const int64_t stride = format.basis_stride();
  auto* components = scratch.Reserve<float>(static_cast<size_t>(count * stride));
  Project(w.keys + begin * w.key_stride, w.key_stride, count, head_dim, w.basis, stride,
          components);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = w.begin + begin + i;
    const int64_t in_page = token % w.metadata.page_tokens;
    auto* block = reinterpret_cast<uint32_t*>(w.metadata.pages[token / w.metadata.page_tokens] +
                                              in_page / kProjectionBlock * format.block_bytes());
    const float* row = components + i * stride;
    for (int64_t p = 0; p < format.pairs(); ++p) {
      block[p * kProjectionBlock + in_page % kProjectionBlock] =
          bf16(row[2 * p]).bits | static_cast<uint32_t>(bf16(row[2 * p + 1]).bits) << 16;
    }
  }
}

}  // namespace

void ProjectionEncode(ThreadPool& pool, const ProjectionFormat& format, int64_t head_dim,
                      std::span<const ProjectionEncodeWork> work) {
  struct Piece {
    const ProjectionEncodeWork* work;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (const ProjectionEncodeWork& w : work) {
    for (int64_t i = 0; i < w.count; i += kProjectionEncodeRows) {
      pieces.push_back({&w, i, std::min(kProjectionEncodeRows, w.count - i)});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      EncodeRows(format, head_dim, *piece.work, piece.begin, piece.count);
    }
  });
}

void ProjectionSelect(ThreadPool& pool, const ProjectionFormat& format, int64_t group,
                      int64_t head_dim, std::span<ProjectionSelectWork> work) {
  const std::vector<float> queries = ProjectQueries(format, group, head_dim, work);
  SelectBySoftmax(
      pool, work, group, kProjectionPieceTokens,
      [&](const ProjectionSelectWork& w, int64_t begin, int64_t end, float* scores,
          int64_t stride) {
        const float* query = queries.data() + (&w - work.data()) * group * 2 * format.pairs();
        PagedProjectionScores(format, w.metadata, begin, end, query, group, scores, stride);
      });
}

}  // namespace litecache::ops::cpu
