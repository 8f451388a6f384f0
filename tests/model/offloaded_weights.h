// Tests that logits do not depend on where weights are, for the policies that a program names. One
// source of a program includes this header and defines OffloadedPolicies().
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "model/exact_policies.h"

namespace litecache::model {

// Names for messages, and options.
std::vector<std::pair<std::string, KvOptions>> OffloadedPolicies();

TEST_P(OffloadedWeightsTest, LogitsOfModels) {
  if (!on_gpu()) GTEST_SKIP() << "weights are copied to a GPU only";
  if (!ModelConfig::FromModel(Directory(name())).recurrent.empty()) {
    EXPECT_ERROR(LoadDecoder(device(), Directory(name()), {.weights_on_device = 0.5}), Unsupported,
                 "weights_on_device = 0.5", "recurrent");
    return;
  }
  for (const bool f32 : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "f32 " << f32);
    Compare(
        OffloadedPolicies(),
        [&](double on_device) {
          return LoadDecoder(device(), Directory(name()),
                             {.dtype = InF32(f32), .weights_on_device = on_device});
        },
        f32 ? 1e-5 : 5e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadedWeightsTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cuda")),
                         TestName);

// More layers than in the fixtures.
class OffloadedShapesTest : public OffloadedWeightsTest {};

TEST_P(OffloadedShapesTest, LogitsOfManyLayers) {
  const ModelConfig config = ModelConfig::FromShapeName(name());
  const uint64_t seed = testing::TestSeed();
  for (const char* types : {"", "q4_0,down_proj=q8_0"}) {
    SCOPED_TRACE(types);
    Compare(
        OffloadedPolicies(),
        [&](double on_device) {
          return RandomDecoder(
              device(), config, seed,
              {.quantization = Quantization::Parse(types), .weights_on_device = on_device});
        },
        5e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OffloadedShapesTest,
                         ::testing::Combine(::testing::Values("opt-125m", "qwen2.5-0.5b",
                                                              "gemma3-270m"),
                                            ::testing::Values("cuda")),
                         [](const auto& info) {
                           const std::string& shape = std::get<0>(info.param);
                           return shape.substr(0, shape.find_first_of(".-"));
                         });

}  // namespace litecache::model
