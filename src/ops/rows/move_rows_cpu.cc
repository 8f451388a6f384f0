#include "ops/rows/move_rows_cpu.h"

#include <algorithm>
#include <vector>

#include "ops/common/convert_rows_cpu.h"
#include "ops/common/row_address.h"

namespace litecache::ops::cpu {
namespace {

// Rows of a work item that one thread moves at a time.
constexpr int64_t kPieceRows = 256;
// How far ahead rows are prefetched: about 4 KiB in flight hide the memory's latency.
constexpr size_t kAheadBytes = 4096;

struct Piece {
  const MoveWork* work;
  int64_t begin, end;
};

void MovePiece(const Piece& piece) {
  const MoveWork& w = *piece.work;
  const RowAddress source(w.source), target(w.target);
  const RowConverter convert(w.source.format, w.target.format);
  const size_t bytes = source.row_bytes();
  const auto ahead = static_cast<int64_t>(std::max<size_t>(kAheadBytes / bytes, 2));
  const int64_t first = std::min(piece.begin + ahead, piece.end);
  for (int64_t i = piece.begin; i < first; ++i) PrefetchRow(source(w.positions[i]), bytes);
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    if (i + ahead < piece.end) PrefetchRow(source(w.positions[i + ahead]), bytes);
    convert(source(w.positions[i]), target(w.slots[i]));
  }
}

}  // namespace

void MoveRows(ThreadPool& pool, std::span<const MoveWork> work) {
  std::vector<Piece> pieces;
  for (const MoveWork& w : work) {
    for (int64_t begin = 0; begin < w.count; begin += kPieceRows) {
      pieces.push_back({&w, begin, std::min(begin + kPieceRows, w.count)});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) MovePiece(pieces[static_cast<size_t>(i)]);
  });
}

}  // namespace litecache::ops::cpu
