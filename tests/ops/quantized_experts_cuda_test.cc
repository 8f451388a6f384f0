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
    MatrixView type;
    std::vector<const void*> packed;
    std::vector<Matrix> values;
  };

  Weights Make(std::string_view format, int64_t experts, int64_t out, int64_t in, bool rounded) {
    Weights weights;
    MatrixView& type = weights.type;
    for (int64_t expert = 0; expert < experts; ++expert) {
      BlockWeights blocks(random_, format, out, in);
      Matrix& values = weights.values.emplace_back(DType::kF32, out, in);
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          const float value = blocks.At(o, i);
          values.Set(o, i, rounded ? static_cast<float>(RoundTo(DType::kBF16, value)) : value);
        }
      }
      weights.packed.push_back(DeviceMemory::Upload(blocks.Packed()));
      type = blocks.view();
    }
    type.data = nullptr;
    type.row_bytes =
        static_cast<int64_t>(PackedBytes(*type.format, kPackedRows, type.cols) / kPackedRows);
    return weights;
  }

  // Biased layers have the function of the models that have biases.
  void Check(const Formats& formats, const ExpertShape& shape, QuantizedExpertsWay way,
             bool biased) {
    SCOPED_TRACE(
        fmt::format("{} rows, hidden {}, intermediate {}, {} of {} experts, {}, {}, {}, biased {}",
                    shape.rows, shape.hidden, shape.intermediate, shape.active, shape.experts,
                    formats.gate, formats.up, formats.down, biased));
    ASSERT_EQ(WayOfQuantizedExperts(shape.rows, shape.active, shape.experts), way);
    const bool rounded = way == QuantizedExpertsWay::kUnpacked;
    const GateFunction& function = biased ? kClampedSwiglu : kSilu;
    // Weights are around 3: biases would not matter beside the products, nor, of down, beside the
    // errors that rounding may cause.
    float x_scale = 1;
    std::vector<float> biases[kExpertParts];
    if (biased) {
      x_scale /= std::sqrt(static_cast<float>(shape.hidden));
      for (int part = 0; part < kExpertParts; ++part) {
        const float scale = part == 2 ? 4 * static_cast<float>(shape.intermediate) : 4;
        biases[part] = RandomBiases(shape, part, scale);
      }
    }
    const Weights gate =
        Make(formats.gate, shape.experts, shape.intermediate, shape.hidden, rounded);
    const Weights up = Make(formats.up, shape.experts, shape.intermediate, shape.hidden, rounded);
    const Weights down =
        Make(formats.down, shape.experts, shape.hidden, shape.intermediate, rounded);
    const Matrix x = Matrix::Normal(random_, DType::kBF16, shape.rows, shape.hidden, 8, x_scale);
    const Matrix y = Matrix::Normal(random_, DType::kF32, shape.rows, shape.hidden, 8);
    const RandomRouting routing(random_, shape);
    // Where gate and up are of two layouts, a half is rounded before they are multiplied.
    const double rounding = (formats.gate == formats.up ? 1 : 2) * Rounding(DType::kBF16);
    for (const ExpertRange& range : Ranges(shape)) {
      SCOPED_TRACE(fmt::format("experts from {}", range.first));
      const Reference reference =
          Refer(shape, x, {gate.values, up.values, down.values, {biases[0], biases[1], biases[2]}},
                routing.Within(range), y, function, rounding);
      const auto part = [&](const Weights& weights, int index) {
        return Table(weights.type, weights.packed, biases[index], range);
      };
      const ExpertLayer layer{.gate = part(gate, 0),
                              .up = part(up, 1),
                              .down = part(down, 2),
                              .elsewhere = shape.experts - range.count};
      const Routing here = Upload(shape, routing.Here(range, shape.active));
      Compare(shape, reference, Run(x, here, layer, y, function));
    }
    stream_->Synchronize();
    buffers_.clear();
  }
};

TEST_F(QuantizedExpertsTest, FewRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    const bool large = FormatNamed(format).values == 256;
    const int64_t hidden = large ? 512 : 160, intermediate = large ? 256 : 96;
    Check({format, format, format}, {1, hidden, intermediate, 7, 3}, QuantizedExpertsWay::kPairs,
          true);
    Check({format, format, format}, {3, hidden, intermediate, 40, 4}, QuantizedExpertsWay::kPairs,
          false);
    Check({format, format, format}, {9, hidden, intermediate, 5, 2}, QuantizedExpertsWay::kTiles,
          false);
    Check({format, format, format}, {61, hidden, intermediate, 5, 3}, QuantizedExpertsWay::kTiles,
          true);
  }
}

TEST_F(QuantizedExpertsTest, ManyRowsOfEveryFormat) {
  for (const std::string_view format : kPackedFormats) {
    const bool large = FormatNamed(format).values == 256;
    Check({format, format, format}, {150, large ? 256 : 96, large ? 256 : 160, 3, 2},
          QuantizedExpertsWay::kUnpacked, format.ends_with("0"));
  }
}

// As files have them: more bits for down, or for a part of the layers.
TEST_F(QuantizedExpertsTest, FormatsOfTheirOwn) {
  for (const auto& [rows, way] : {std::pair(1, QuantizedExpertsWay::kPairs),
                                  {30, QuantizedExpertsWay::kTiles},
                                  {200, QuantizedExpertsWay::kUnpacked}}) {
    Check({"Q4_K", "Q4_K", "Q6_K"}, {rows, 768, 512, 4, 2}, way, true);
    Check({"Q4_K", "Q5_K", "Q8_0"}, {rows, 256, 256, 4, 2}, way, false);
    // A half of a gated product in each of two launches.
    Check({"Q4_K", "Q5_K", "Q8_0"}, {rows, 256, 256, 4, 2}, way, true);
  }
}

// Depths and widths of models.
TEST_F(QuantizedExpertsTest, WideLayers) {
  Check({"Q4_K", "Q4_K", "Q6_K"}, {1, 2048, 768, 16, 8}, QuantizedExpertsWay::kPairs, false);
  const Formats mxfp4 = {"MXFP4", "MXFP4", "MXFP4"};
  Check(mxfp4, {1, 2880, 2880, 6, 4}, QuantizedExpertsWay::kPairs, true);
  Check(mxfp4, {2, 2880, 2880, 8, 4}, QuantizedExpertsWay::kTiles, true);
  Check(mxfp4, {70, 2880, 96, 2, 1}, QuantizedExpertsWay::kUnpacked, true);
  Check(mxfp4, {70, 224, 2880, 2, 1}, QuantizedExpertsWay::kUnpacked, true);
}

// Depths and widths that are odd multiples of a block: chunks and tiles are partly empty.
TEST_F(QuantizedExpertsTest, OddMultiplesOfABlock) {
  const Formats mxfp4 = {"MXFP4", "MXFP4", "MXFP4"};
  for (const auto& [hidden, intermediate] :
       {std::pair<int64_t, int64_t>{32, 32}, {288, 32}, {32, 544}, {864, 224}}) {
    Check(mxfp4, {1, hidden, intermediate, 9, 4}, QuantizedExpertsWay::kPairs, true);
    Check(mxfp4, {12, hidden, intermediate, 9, 4}, QuantizedExpertsWay::kTiles, true);
    Check(mxfp4, {130, hidden, intermediate, 3, 2}, QuantizedExpertsWay::kUnpacked, true);
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
