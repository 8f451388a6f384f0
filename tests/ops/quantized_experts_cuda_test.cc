#include "ops/experts/quantized_experts_cuda.h"

#include <string_view>

#include "ops/blocks_testing.h"
#include "ops/experts_testing.h"

namespace litecache::ops::cuda {
namespace {

class QuantizedExpertsTest : public ExpertsTest {
 protected:
  struct Formats {
    std::string_view gate, up, down;
  };
  // The matrices of all experts: packed, on the device, and their values.
  struct Weights {
    ExpertMatrices packed;
    std::vector<Matrix> values;
  };

  Weights Make(std::string_view format, int64_t experts, int64_t out, int64_t in, bool rounded) {
    Weights weights;
    std::vector<const void*> data;
    MatrixView type;
    for (int64_t expert = 0; expert < experts; ++expert) {
      BlockWeights blocks(random_, format, out, in);
      Matrix& values = weights.values.emplace_back(DType::kF32, out, in);
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          const float value = blocks.At(o, i);
          values.Set(o, i, rounded ? static_cast<float>(RoundTo(DType::kBF16, value)) : value);
        }
      }
      data.push_back(DeviceMemory::Upload(blocks.Packed()));
      type = blocks.view();
    }
    type.data = nullptr;
    type.row_bytes =
        static_cast<int64_t>(PackedBytes(*type.format, kPackedRows, type.cols) / kPackedRows);
    weights.packed = Table(type, data);
    return weights;
  }

  void Check(const Formats& formats, const ExpertShape& shape, QuantizedExpertsWay way) {
    SCOPED_TRACE(fmt::format("{} rows, hidden {}, intermediate {}, {} of {} experts, {}, {}, {}",
                             shape.rows, shape.hidden, shape.intermediate, shape.active,
                             shape.experts, formats.gate, formats.up, formats.down));
    ASSERT_EQ(WayOfQuantizedExperts(shape.rows, shape.active, shape.experts), way);
    const bool rounded = way == QuantizedExpertsWay::kUnpacked;
    const Weights gate =
        Make(formats.gate, shape.experts, shape.intermediate, shape.hidden, rounded);
    const Weights up = Make(formats.up, shape.experts, shape.intermediate, shape.hidden, rounded);
    const Weights down =
        Make(formats.down, shape.experts, shape.hidden, shape.intermediate, rounded);
    const Matrix x = Matrix::Normal(random_, DType::kBF16, shape.rows, shape.hidden, 8);
    const Matrix y = Matrix::Normal(random_, DType::kF32, shape.rows, shape.hidden, 8);
    const RandomRouting routing(random_, shape);
    // Where gate and up are of two layouts, a half is rounded before they are multiplied.
    const double rounding = (formats.gate == formats.up ? 1 : 2) * Rounding(DType::kBF16);
    const Reference reference = Refer(shape, x, {gate.values, up.values, down.values}, routing, y,
                                      /*gelu=*/false, rounding);
    Compare(shape, reference,
            Run(x, Upload(shape, routing), {gate.packed, up.packed, down.packed}, y, false));
    stream_->Synchronize();
    buffers_.clear();
  }
};

TEST_F(QuantizedExpertsTest, FewRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    const bool large = FormatNamed(format).values == 256;
    const int64_t hidden = large ? 512 : 160, intermediate = large ? 256 : 96;
    Check({format, format, format}, {1, hidden, intermediate, 7, 3}, QuantizedExpertsWay::kPairs);
    Check({format, format, format}, {3, hidden, intermediate, 40, 4}, QuantizedExpertsWay::kPairs);
    Check({format, format, format}, {9, hidden, intermediate, 5, 2}, QuantizedExpertsWay::kTiles);
    Check({format, format, format}, {61, hidden, intermediate, 5, 3}, QuantizedExpertsWay::kTiles);
  }
}

TEST_F(QuantizedExpertsTest, ManyRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    const bool large = FormatNamed(format).values == 256;
    Check({format, format, format}, {150, large ? 256 : 96, large ? 256 : 160, 3, 2},
          QuantizedExpertsWay::kUnpacked);
  }
}

// As files have them: more bits for down, or for a part of the layers.
TEST_F(QuantizedExpertsTest, FormatsOfTheirOwn) {
  for (const auto& [rows, way] : {std::pair(1, QuantizedExpertsWay::kPairs),
                                  {30, QuantizedExpertsWay::kTiles},
                                  {200, QuantizedExpertsWay::kUnpacked}}) {
    Check({"Q4_K", "Q4_K", "Q6_K"}, {rows, 768, 512, 4, 2}, way);
    Check({"Q4_K", "Q5_K", "Q8_0"}, {rows, 256, 256, 4, 2}, way);
  }
}

// Depths and widths of models.
TEST_F(QuantizedExpertsTest, WideLayers) {
  Check({"Q4_K", "Q4_K", "Q6_K"}, {1, 2048, 768, 16, 8}, QuantizedExpertsWay::kPairs);
  Check({"MXFP4", "MXFP4", "MXFP4"}, {2, 2880, 2880, 8, 4}, QuantizedExpertsWay::kTiles);
}

}  // namespace
}  // namespace litecache::ops::cuda
