#include <tuple>
#include <utility>

#include "ops/linear_testing.h"

namespace litecache::ops {
namespace {

TEST_F(LinearTest, FewRowsOfAnySize) {
  // Widths that are no multiple of a step, no multiple of a chunk (read element by element), and
  // that have only one chunk.
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 8},
                                {7, 40},
                                {9, 37},
                                {131, 1032},
                                {64, 4096},
                                {257, 2048 + 8},
                                {33, 511}}) {
    for (int64_t rows : {1, 2, 5, 8, 9, 16}) {
      const bool odd = (rows + out) % 2 == 1;
      for (const DType y : target_->Activations()) {
        const bool f32 = y == DType::kF32;
        Check(Make(rows, out, in, DType::kBF16, y, odd == f32, f32 && rows % 3 == 2, f32 ? 0 : 8));
      }
      if (rows == 5) Check(Make(rows, out, in, DType::kBF16, DType::kF32, odd, true, 3));
    }
  }
}

TEST_F(LinearTest, FewRowsOfAnyDepth) {
  // Rings of a whole and of half an SM's shared memory, and an x that fits neither; more outputs
  // than blocks, and fewer.
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{140, 14336},
                                {20, 14344},
                                {1200, 1024},
                                {300, 4096},
                                {20, 32768}}) {
    for (int64_t rows : {1, 6, 16}) {
      Check(Make(rows, out, in, DType::kBF16, DType::kF32, rows == 6, rows == 1, 0));
    }
  }
}

TEST_F(LinearTest, GatedFewAndManyRows) {
  for (const auto& [out, in] :
       {std::pair<int64_t, int64_t>{1, 8}, {7, 40}, {9, 37}, {133, 1032}, {300, 2048}}) {
    for (int64_t rows : {1, 2, 5, 8, 9, 16, 33}) {
      for (const DType y : target_->Activations()) {
        const bool f32 = y == DType::kF32;
        const GateFunction functions[] = {kSilu, kGeluTanh, kClampedSwiglu};
        CheckGated(rows, out, in, y, (rows % 2 == 1) == f32,
                   f32         ? 3
                   : rows == 5 ? 8
                               : 0,
                   functions[(rows + out + (f32 ? 1 : 0)) % 3]);
      }
    }
  }
}

TEST_F(LinearTest, ManyRows) {
  for (const auto& [out, in] :
       {std::pair<int64_t, int64_t>{64, 128}, {136, 264}, {33, 37}, {7, 1032}}) {
    for (int64_t rows : {17, 64, 131}) {
      const bool odd = (rows + out) % 2 == 1;
      for (const DType y : target_->Activations()) {
        const bool f32 = y == DType::kF32;
        Check(Make(rows, out, in, DType::kBF16, y, !f32 || odd, f32 && rows == 64, f32 ? 0 : 8));
        Check(Make(rows, out, in, DType::kBF16, y, f32 && !odd, f32 && rows != 64, f32 ? 8 : 1));
      }
    }
  }
}

TEST_F(LinearTest, BiasResidualAndStrides) {
  for (DType dtype : target_->Tables()) {
    for (int64_t rows : {1, 4, 9, 80}) {
      for (bool add : {false, true}) {
        for (bool bias : {false, true}) {
          Check(Make(rows, 101, 130, dtype, DType::kF32, bias, add, 5));
        }
      }
    }
  }
}

TEST_F(LinearTest, WeightsOfMoreThanBf16MultiplyInF32) {
  for (DType dtype : target_->Tables()) {
    if (dtype == DType::kBF16) continue;
    for (int64_t rows : {1, 3, 16, 61}) {
      Check(Make(rows, 67, 259, dtype, DType::kF32, rows == 3, false, 0));
      Check(Make(rows, 128, 256, dtype, DType::kF32, rows != 3, true, 4));
    }
  }
}

TEST_F(LinearTest, SeveralProductsOfOneX) {
  for (int64_t rows : {1, 7, 16, 40}) {
    SCOPED_TRACE(rows);
    std::vector<LinearCase> cases;
    for (int64_t out : {136, 1, 24, 515, 9, 8}) {
      const DType y = out % 2 == 0 ? DType::kF32 : target_->Activations().back();
      cases.push_back(Make(rows, out, 264, DType::kBF16, y, out == 24 || out == 9, false, 8));
      SetX(cases.back(), cases[0].x);
    }
    ForEachVariant([&] {
      std::vector<LinearPart> targets;
      for (const LinearCase& c : cases) targets.push_back(Target(c));
      Linear(*stream_, OnDevice(cases[0].x), targets);
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(i);
        Compare(cases[i], targets[i].y);
      }
    });
  }
}

}  // namespace
}  // namespace litecache::ops
