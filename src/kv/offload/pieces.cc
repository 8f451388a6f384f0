#include "kv/offload/pieces.h"

#include <algorithm>

namespace litecache::kv::offload {

Pieces MakePieces(const std::vector<Part>& parts, const std::vector<Group>& groups, int64_t rows,
                  int64_t unit) {
  Pieces result;
  const auto add = [&](int64_t part, int64_t begin, int64_t end, bool* open) {
    while (begin < end) {
      const auto next = static_cast<int64_t>(result.segments.size());
      if (!*open || result.pieces.back().rows == rows) {
        result.pieces.push_back({.begin = next, .end = next});
        *open = true;
      }
      Piece& piece = result.pieces.back();
      const int64_t count = std::min(rows - piece.rows, end - begin);
      result.segments.push_back({part, begin, count, piece.rows});
      piece.rows += count;
      piece.end = next + 1;
      begin += count;
    }
  };
  for (const Group& group : groups) {
    result.first_piece.push_back(static_cast<int64_t>(result.pieces.size()));
    bool open = false;
    group.ForEach([&](int64_t i) {
      const Part& part = parts[static_cast<size_t>(i)];
      add(i, 0, part.split, &open);
      add(i, part.arrived_end(), part.sequence.past, &open);
    });
  }
  result.first_piece.push_back(static_cast<int64_t>(result.pieces.size()));
  for (Piece& piece : result.pieces) {
    piece.first_position = result.total;
    piece.places = (piece.rows + unit - 1) / unit * unit;
    result.total += piece.places;
  }
  return result;
}

}  // namespace litecache::kv::offload
