// A decoder with random weights, small enough to read thousands of tokens per second.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "model/decoder.h"

namespace litecache::testing {

inline model::ModelConfig SmallConfig(const char* shape = "llama3.2-1b") {
  model::ModelConfig config = model::ModelConfig::FromShapeName(shape);
  config.layers = 3;
  config.vocab = 211;
  config.hidden = 48;
  config.embedding_dim = 48;
  config.intermediate = 64;
  config.q_heads = 6;
  config.kv_heads = config.family == model::Family::kOpt ? 6 : 2;
  config.head_dim = config.family == model::Family::kOpt ? 8 : 16;
  config.max_context = 2048;
  return config;
}

inline std::vector<int32_t> RandomTokens(std::mt19937_64& random, size_t count, int32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return tokens;
}

inline std::vector<float> Normal(std::mt19937_64& random, size_t count, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace litecache::testing
