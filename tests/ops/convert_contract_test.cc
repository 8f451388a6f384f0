#include "ops/dense/convert.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

using ConvertTest = DenseTest;

TEST_F(ConvertTest, RoundsToNearestEvenAndBack) {
  for (const DType narrow : {DType::kBF16, DType::kF16}) {
    // A GPU's grid has at most 65,535 rows.
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{3, 1037}, {1, 70003}, {70001, 3}}) {
      for (const int64_t padding : {0, 3}) {
        SCOPED_TRACE(fmt::format("{}, [{}, {}], padding {}", Name(narrow), rows, cols, padding));
        const Matrix x = Matrix::Normal(random_, DType::kF32, rows, cols, padding, 3);
        const Matrix unwritten(narrow, rows, cols, padding);
        const Matrix unwritten_wide(DType::kF32, rows, cols, padding);
        const MatrixView rounded = OnDevice(unwritten), back = OnDevice(unwritten_wide);
        Convert(*stream_, OnDevice(x), rounded);
        Convert(*stream_, rounded, back);
        const auto exact = [](int64_t, int64_t) { return 0.0; };
        for (const MatrixView& got : {rounded, back}) {
          ExpectNear(
              got,
              [&](int64_t r, int64_t c) { return RoundTo(narrow, static_cast<float>(x.At(r, c))); },
              exact);
        }
        buffers_.clear();
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops
