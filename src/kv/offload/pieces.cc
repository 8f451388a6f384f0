#include "kv/offload/pieces.h"

#include <algorithm>

namespace litecache::kv::offload {

Pieces MakePieces(const std::vector<Part>& parts, const std::vector<Group>& groups, int64_t rows) {
  Pieces result;
  for (const Group& group : groups) {
    result.first_piece.push_back(static_cast<int64_t>(result.pieces.size()));
    bool open = false;
    group.ForEach([&](int64_t i) {
      const int64_t split = parts[static_cast<size_t>(i)].split;
      for (int64_t begin = 0; begin < split;) {
        const auto next = static_cast<int64_t>(result.segments.size());
        if (!open || result.pieces.back().rows == rows) {
          result.pieces.push_back({next, next, result.total, 0});
          open = true;
        }
        Piece& piece = result.pieces.back();
        const int64_t count = std::min(rows - piece.rows, split - begin);
        result.segments.push_back({i, begin, count, piece.rows});
        piece.rows += count;
        piece.end = next + 1;
        result.total += count;
        begin += count;
      }
    });
  }
  result.first_piece.push_back(static_cast<int64_t>(result.pieces.size()));
  for (const Piece& piece : result.pieces) result.longest = std::max(result.longest, piece.rows);
  return result;
}

}  // namespace litecache::kv::offload
