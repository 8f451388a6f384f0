// The decoder with RMSNorm, RoPE, GQA and SwiGLU: llama, mistral, qwen2 and qwen3 differ only in
// biases and norms.
#pragma once

#include <memory>

#include "model/decoder.h"
#include "model/weights.h"

namespace litecache::model {

std::unique_ptr<Decoder> BuildTransformer(Device& device, const ModelConfig& config,
                                          std::unique_ptr<WeightStore> weights);

}  // namespace litecache::model
