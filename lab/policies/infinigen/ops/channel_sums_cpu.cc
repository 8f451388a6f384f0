#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/policies/infinigen/ops/infinigen_cpu.h"
#include "ops/common/scratch.h"
#include "ops/select/project_cpu.h"

namespace litecache::lab::ops::cpu {
namespace {

constexpr int64_t kPieceRows = 96;  // projected at once

}  // namespace

void AddChannelSums(ThreadPool& pool, int64_t head_dim, int64_t width,
                    std::span<const ChannelSumsWork> work) {
  struct Piece {
    const ChannelSumsWork* work;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (const ChannelSumsWork& w : work) {
    for (int64_t i = 0; i < w.count; i += kPieceRows) {
      pieces.push_back({&w, i, std::min(kPieceRows, w.count - i)});
    }
  }
  // The sums of the pieces are kept separate until all are done, so that they are added in order.
  std::vector<double> parts(pieces.size() * static_cast<size_t>(width));
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch scratch;
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[static_cast<size_t>(p)];
      const ChannelSumsWork& w = *piece.work;
      auto* projected = scratch.Reserve<float>(static_cast<size_t>(piece.count * width));
      Project(w.rows + piece.begin * w.stride, w.stride, piece.count, head_dim, w.basis, width,
              projected);
      double* sums = parts.data() + p * width;
      for (int64_t r = 0; r < piece.count; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          sums[j] += static_cast<double>(std::abs(projected[r * width + j]));
        }
      }
    }
  });
  for (size_t p = 0; p < pieces.size(); ++p) {
    for (int64_t j = 0; j < width; ++j) {
      pieces[p].work->sums[j] += parts[p * static_cast<size_t>(width) + static_cast<size_t>(j)];
    }
  }
}

}  // namespace litecache::lab::ops::cpu
