// Where the rows of a matrix are in a tensor of a model's files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace litecache::model {

class RowOrder {
 public:
  // Rows from `first` on, up to the next section's: each group of the tensor's rows has `count` of
  // them, after `skipped` others.
  struct Section {
    int64_t first = 0, count = 1, skipped = 0;
  };

  RowOrder() = default;  // the tensor's order
  // group: the tensor's rows in a group. sections: at most three, ascending, the first from 0 on.
  RowOrder(int64_t group, std::initializer_list<Section> sections);
  // Rows i and i + d / 2 of each of `heads` heads of d rows are its rows 2 i and 2 i + 1 in the
  // tensor (io::Checkpoint::Tensor::paired_heads).
  static RowOrder Paired(int64_t rows, int64_t heads);

  bool in_order() const { return group_ == 0 && paired_dim_ == 0; }
  // The tensor's row.
  int64_t operator()(int64_t row) const;

 private:
  int64_t group_ = 0, paired_dim_ = 0;
  size_t used_ = 0;
  std::array<Section, 3> sections_;
};

// The rows of a matrix: which tensor has them, its height, and where in it.
struct StoredRows {
  std::string tensor;
  int64_t rows = 0;
  RowOrder order;
};

}  // namespace litecache::model
