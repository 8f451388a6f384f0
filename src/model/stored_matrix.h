// A matrix that a directory does not hold as rows of numbers: read row by row, as numbers or as the
// blocks that it is kept in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/block_format.h"
#include "base/dtype.h"

namespace litecache::model {

class StoredMatrix {
 public:
  virtual ~StoredMatrix() = default;

  // Of the blocks that hold the values; null: they are numbers.
  virtual const BlockFormat* format() const = 0;
  // The type of these numbers in the files.
  virtual DType dtype() const { return DType::kBF16; }
  virtual uint64_t bytes() const = 0;  // in the files

  // Rows are read in tiles of so many: where neighbouring rows are neighbours in the file, a tile
  // costs little more than a row.
  static constexpr int64_t kTileRows = 64;

  // Reads rows, for one thread; each tile once if they are in order. Throws FileError for a row
  // that contradicts the config.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual void ToFloat(int64_t row, float* out) = 0;
    virtual void ToBlocks(int64_t row, std::byte* out) = 0;  // of format(), which is not null
  };
  virtual std::unique_ptr<Reader> NewReader() const = 0;
};

}  // namespace litecache::model
