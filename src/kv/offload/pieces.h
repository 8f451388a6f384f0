// What a GPU recomputes together: tokens of several sequences, since a matrix product of few rows
// would leave most of it idle.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/offload/groups.h"

namespace litecache::kv::offload {

// Tokens [begin, begin + count) of a part: rows [first_row, first_row + count) of their piece.
struct Segment {
  int64_t part = 0;
  int64_t begin = 0, count = 0, first_row = 0;
};

// Segments [begin, end), recomputed together.
struct Piece {
  int64_t begin = 0, end = 0;
  int64_t first_position = 0;  // sum of the places of earlier pieces
  int64_t rows = 0;
  // Rows to multiply, rounded up: for each new number of rows the library selects an algorithm and
  // may load code, which takes milliseconds, and a step's rows change with every token.
  int64_t places = 0;
};

struct Pieces {
  std::vector<Segment> segments;
  std::vector<Piece> pieces;  // group after group
  // [groups + 1]: group g has pieces [first_piece[g], first_piece[g + 1])
  std::vector<int64_t> first_piece;
  int64_t total = 0;  // places of all pieces

  bool empty() const { return pieces.empty(); }
};

// Makes pieces of `rows` rows; a group's last piece may have fewer, a multiple of `unit` places.
// unit divides rows.
Pieces MakePieces(const std::vector<Part>& parts, const std::vector<Group>& groups, int64_t rows,
                  int64_t unit);

}  // namespace litecache::kv::offload
